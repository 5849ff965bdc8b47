"""A producer is small: it does not load the engine's libraries and needs little memory."""

from __future__ import annotations

import pytest

from hypaware.home import Home
from tests.support.processes import succeed
from tests.support.rows import DATASET

_HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "pandas")


@pytest.mark.parametrize("package", ["hypaware.spool", "hypaware.state", "hypaware.model"])
def test_importing_a_package_loads_nothing_heavy(home: Home, package: str) -> None:
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.iter_modules(package.__path__, {package!r} + "."):
    importlib.import_module(module.name)
print([name for name in {_HEAVY} if name in sys.modules])
"""
    assert succeed(code, home) == "[]\n"


def test_a_process_that_only_spools_loads_neither_engine_nor_database_and_stays_small(home: Home) -> None:
    code = rf"""
import os, pathlib, re, resource, sys
from hypaware.spool.writer import Spool
from tests.support.rows import rows
with Spool(os.environ["HYP_HOME"]) as spool:
    for start in range(0, 20_000, 1_000):
        spool.append("{DATASET}", rows(1_000, start))
if sys.platform == "linux":  # where ru_maxrss would be that of the process that started us
    print(int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print([name for name in {(*_HEAVY, "sqlalchemy", "sqlite3")} if name in sys.modules])
"""
    peak, loaded = succeed(code, home).splitlines()
    assert int(peak) < 60 << 20
    assert loaded == "[]"


def test_making_a_home_loads_nothing_heavy(home: Home) -> None:
    code = f"""
import os, sys
from pathlib import Path
from hypaware.home import Home
from hypaware.state.home_opener import open_home
open_home(Home(Path(os.environ["HYP_HOME"] + "-new"))).store.close()
print([name for name in {_HEAVY} if name in sys.modules])
"""
    assert succeed(code, home) == "[]\n"
