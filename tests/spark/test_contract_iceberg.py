"""The sink contract for a table in another lake."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hypaware import faults
from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.testing import contract, fault_injection
from hypaware.testing.contract import SinkContract, SinkHome
from tests.support import processes
from tests.support.iceberg_destination import Lake, kind_on

pytestmark = pytest.mark.spark

# An engine of its own, whose JVM is killed with it.
_ENGINE = """
import pickle, sys
from pathlib import Path
from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.testing import fault_injection
from tests.support.iceberg_destination import kind_on
site, work, faults = pickle.loads(Path(sys.argv[1]).read_bytes())
session = open_session(Home.from_environment(), master="local[1]", memory="512m")
with fault_injection.register_kind(fault_injection.wrap_kind(kind_on(session.spark), faults)):
    getattr(site, work)()
session.close()
"""
# Each delivery makes a commit for every few rows: a short run kills at the sink's own crash points and next to them.
_FEW_POINTS = ("export.ship.before-send", "export.plan.after-mirror", "export.ship.after-answer")


def _run_in_engine(work: Callable[[], None], crash_at: str | None = None) -> bool:
    site = work.__self__  # type: ignore[attr-defined]
    assert isinstance(site, SinkHome)
    here = site.home.root.parent
    (here / "work").write_bytes(pickle.dumps((site, work.__name__, here / "faults")))
    done = processes.run(_ENGINE, Home(here / "engine"), here / "work", crash_at=crash_at)
    assert done.returncode == 0 or processes.was_killed(done), done.stderr
    return done.returncode == 0


def _run_beside_jvm(session: EngineSession) -> Callable[..., bool]:
    """Return a runner of forked children that use the JVM of this process, which waits for them and survives them.

    A start of an engine takes seconds. `test_iceberg_sink` kills an engine with its JVM at the sink's own points.
    """

    def run(work: Callable[[], object], crash_at: str | None = None) -> bool:
        def in_child() -> None:
            faults.forget_child(session.jvm_pid)
            # The child must not release what its parent refers to.
            gc.freeze()
            work()

        survived = fault_injection.run_in_child(in_child, crash_at)
        # As the next engine does with what a killed one leaves.
        for path in Path(str(session.jvm.java.lang.System.getProperty("java.io.tmpdir"))).glob("part-*"):
            path.unlink()
        return survived

    return run


class TestIcebergTable(SinkContract):
    drops_known_rows = True
    points = ("export.iceberg.after-files", "export.iceberg.before-commit", "export.iceberg.after-commit")
    session: EngineSession

    @pytest.fixture(autouse=True)
    def _engine(self, engine_session: EngineSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = engine_session
        self.kind = kind_on(engine_session.spark)
        if "HYP_SOAK" in os.environ:
            monkeypatch.setattr(contract, "run_in_child", _run_in_engine)
        else:
            monkeypatch.setattr(contract, "run_in_child", _run_beside_jvm(engine_session))
            monkeypatch.setattr(contract, "POINTS", _FEW_POINTS)

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._lake(tmp_path / "there").options

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._lake(tmp_path / "elsewhere").options

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        folder = Path(options["catalog"]["warehouse"]).parent
        if not (folder / "catalog.db").exists():
            return []
        return [row["message_id"] for row in self._lake(folder).rows()]

    def _lake(self, folder: Path) -> Lake:
        folder.mkdir(exist_ok=True)
        return Lake(folder, self.session.spark)
