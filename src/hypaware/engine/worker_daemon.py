"""The parent of Spark's Python workers, with what they need already imported: forked workers start warm.

Spark runs it as `python -m hypaware.engine.worker_daemon` (`spark.python.daemon.module`). It is PySpark's own daemon
with imports before it; what is imported here is shared by all workers, memory included.
"""

from __future__ import annotations

import gc
import importlib
import os

WARM = (
    "pyarrow",
    "pyarrow.json",
    "pyarrow.parquet",
    "orjson",
    "hypaware.lake.slices",
    "hypaware.lake.thin",
    "hypaware.backfill.workers",
)


def main() -> None:
    # A cluster's worker was not started by us.
    os.umask(0o077)
    for name in WARM:
        importlib.import_module(name)
    from pyspark.daemon import manager

    # Objects made so far never die: keep the collector of each worker from touching, and so copying, their pages.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
