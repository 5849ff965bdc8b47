"""The parent process of Spark's Python workers. It imports their modules first, so that forked workers start fast.

Spark runs it as `python -m hypaware.engine.worker_daemon` (`spark.python.daemon.module`). It is PySpark's daemon,
preceded by imports. All workers share the memory of the imported modules.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys

WARM = ("pyarrow", "pyarrow.json", "pyarrow.parquet", "orjson", "hypaware.lake.build", "hypaware.lake.prepare")
# Loads the plugins of the tasks.
_LOAD_PLUGINS = "hypaware.backfill.source_rows:load_registries"
EXPECTED = "HYP_EXECUTOR_EXPECTS"


def describe_versions() -> str:
    """Return the versions that driver and executors must share."""
    from hypaware import __version__

    return f"hypaware {__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    expected = os.environ.get(EXPECTED)
    if expected is not None and expected != (found := describe_versions()):
        sys.exit(f"this executor has {found}, but the driver has {expected}")
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
