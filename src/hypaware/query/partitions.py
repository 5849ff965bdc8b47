"""Run a Spark job over some partitions of an RDD of byte strings, and return the strings in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(context: SparkContext, java_rdd: Any, partitions: Iterable[int]) -> Iterator[bytes]:
    """Run one job. When the first item arrives, the job is done and the JVM holds its result."""
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import local_connect_and_auth

    port, secret, *_ = context._jvm.PythonRDD.runJob(context._jsc.sc(), java_rdd, list(partitions))
    # PySpark's own reader leaves closing the socket to the garbage collector.
    file, connection = local_connect_and_auth(port, secret)
    with closing(connection), closing(file):
        connection.settimeout(None)
        yield from NoOpSerializer().load_stream(file)
