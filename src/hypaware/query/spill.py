"""Read large results through files, one per partition, written by the tasks and read back in order.

Spark sends a partition's rows to the driver as a whole, so a large partition would exhaust the JVM's memory. Through
files, memory use does not depend on the size of the result, and no task waits for a slow reader. The files (Arrow IPC
streams with lz4, mode 0600) are in the session's scratch folder and are deleted once read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hypaware.query import batches, partitions

if TYPE_CHECKING:
    from pyspark import SparkContext

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def read(context: SparkContext, arrow_rdd: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from pyspark.core.rdd import RDD
    from pyspark.serializers import NoOpSerializer

    scratch = context._jvm.java.lang.System.getProperty("java.io.tmpdir")
    folder = Path(tempfile.mkdtemp(prefix="query-", dir=scratch))
    try:
        write = partial(write_partition, str(folder), schema.serialize().to_pybytes())
        writer_rdd = RDD(arrow_rdd, context, NoOpSerializer()).mapPartitionsWithIndex(write)
        deque(partitions.run(context, writer_rdd._jrdd, range(writer_rdd.getNumPartitions())), maxlen=0)
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
        for batch in batches.joined(small):
            if writer is None:
                fd = os.open(Path(folder) / f"{index:08d}.arrow", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                file = opened.enter_context(os.fdopen(fd, "wb"))
                writer = opened.enter_context(pa.ipc.new_stream(file, schema, options=_LZ4))
            writer.write_batch(batch)
            rows += batch.num_rows
    yield rows
