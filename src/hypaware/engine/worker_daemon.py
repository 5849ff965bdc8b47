"""The parent process of Spark's Python workers. It imports their modules first, so that forked workers start fast.

Spark runs it as `python -m hypaware.engine.worker_daemon` (`spark.python.daemon.module`). It is PySpark's daemon,
preceded by imports. All workers share the memory of the imported modules.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil

WARM = ("pyarrow", "pyarrow.json", "pyarrow.parquet", "orjson", "hypaware.lake.build", "hypaware.lake.prepare")
# Loads the plugins of the tasks.
_LOAD_PLUGINS = "hypaware.backfill.source_rows:load_registries"


def main() -> None:
    # On a cluster, this process does not inherit the engine's umask.
    os.umask(0o077)
    for name in WARM:
        importlib.import_module(name)
    pkgutil.resolve_name(_LOAD_PLUGINS)()
    from pyspark.daemon import manager

    # Objects created so far are never freed. Freezing them keeps the garbage collector from copying their pages.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
