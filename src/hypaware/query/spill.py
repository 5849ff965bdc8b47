"""Read the partitions of a Spark result: directly, or through files if the result is large.

Spark sends a partition's rows to the driver as a whole, so a large partition would exhaust the JVM's memory. Through
files, memory use does not depend on the size of the result, and no task waits for a slow reader. The files, one per
partition (Arrow IPC streams with lz4, mode 0600), are in the session's scratch folder and are deleted once read.

Tasks import this module, so it imports as little as possible.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark import SparkContext

_BATCH_ROWS, _BATCH_BYTES = 1000, 4 << 20
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def read_spilled(context: SparkContext, arrow_rdd: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from pyspark.core.rdd import RDD
    from pyspark.serializers import NoOpSerializer

    scratch = context._jvm.java.lang.System.getProperty("java.io.tmpdir")
    folder = Path(tempfile.mkdtemp(prefix="query-", dir=scratch))
    try:
        write = partial(write_partition, str(folder), schema.serialize().to_pybytes())
        writer_rdd = RDD(arrow_rdd, context, NoOpSerializer()).mapPartitionsWithIndex(write)
        deque(run_partitions(context, writer_rdd._jrdd, range(writer_rdd.getNumPartitions())), maxlen=0)
        for path in sorted(folder.iterdir()):
            with pa.OSFile(str(path)) as file:
                yield from pa.ipc.open_stream(file)
            path.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_partition(folder: str, schema_message: bytes, index: int, messages: Iterable[bytes]) -> Iterator[int]:
    """Write one partition, within a task, and yield its number of rows. An empty partition leaves no file."""
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    small = (pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)
    rows = 0
    with ExitStack() as opened:
        writer = None
        for batch in combine_batches(small):
            if writer is None:
                fd = os.open(Path(folder) / f"{index:08d}.arrow", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                file = opened.enter_context(os.fdopen(fd, "wb"))
                writer = opened.enter_context(pa.ipc.new_stream(file, schema, options=_LZ4))
            writer.write_batch(batch)
            rows += batch.num_rows
    yield rows


def run_partitions(context: SparkContext, java_rdd: Any, partitions: Iterable[int]) -> Iterator[bytes]:
    """Run one job. When the first item arrives, the job is done and the JVM holds its result."""
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import local_connect_and_auth

    port, secret, *_ = context._jvm.PythonRDD.runJob(context._jsc.sc(), java_rdd, list(partitions))
    # PySpark's own reader leaves closing the socket to the garbage collector.
    file, connection = local_connect_and_auth(port, secret)
    with closing(connection), closing(file):
        connection.settimeout(None)
        yield from NoOpSerializer().load_stream(file)


def combine_batches(small: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about 4 MiB or 1000 rows."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in small:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _concatenate(held)
            held, rows, size = [], 0, 0
    if held:
        yield _concatenate(held)


def _concatenate(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)
