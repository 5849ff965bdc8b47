"""The sink contract for a table in another lake."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.testing import contract
from hypaware.testing.contract import SinkContract, SinkHome
from tests.support import processes
from tests.support.iceberg_destination import Lake, kind_on

pytestmark = pytest.mark.spark

# A process with its own engine: a JVM does not survive a fork.
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
# Starting an engine takes seconds: a short run kills only at the sink's own crash points.
_FEW_POINTS = ("export.ship.before-send", "export.plan.after-mirror", "export.ship.after-answer")


def _run_in_engine(work: Callable[[], None], crash_at: str | None = None) -> bool:
    site = work.__self__  # type: ignore[attr-defined]
    assert isinstance(site, SinkHome)
    here = site.home.root.parent
    (here / "work").write_bytes(pickle.dumps((site, work.__name__, here / "faults")))
    done = processes.run(_ENGINE, Home(here / "engine"), here / "work", crash_at=crash_at)
    assert done.returncode == 0 or processes.was_killed(done), done.stderr
    return done.returncode == 0


class TestIcebergTable(SinkContract):
    drops_known_rows = True
    points = ("export.iceberg.after-files", "export.iceberg.before-commit", "export.iceberg.after-commit")
    session: EngineSession

    @pytest.fixture(autouse=True)
    def _engine(self, engine_session: EngineSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = engine_session
        self.kind = kind_on(engine_session.spark)
        monkeypatch.setattr(contract, "run_in_child", _run_in_engine)
        if "HYP_SOAK" not in os.environ:
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
