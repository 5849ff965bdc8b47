"""Runs Spark over some partitions of an RDD of byte strings, and brings them back in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(context: SparkContext, java_rdd: Any, partitions: Iterable[int]) -> Iterator[bytes]:
    """One job. It is done when this returns: what is left is to read what the JVM holds."""
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import local_connect_and_auth

    port, secret, *_ = context._jvm.PythonRDD.runJob(context._jsc.sc(), java_rdd, list(partitions))
    # PySpark's own reader leaves the socket to the garbage collector.
    file, connection = local_connect_and_auth(port, secret)
    with closing(connection), closing(file):
        connection.settimeout(None)
        yield from NoOpSerializer().load_stream(file)
