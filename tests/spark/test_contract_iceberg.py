"""The contract of all sinks, over a table in another lake."""

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
from hypaware.testing.contract import Place, SinkContract
from tests import processes
from tests.iceberg_destination import Lake, kind_on

pytestmark = pytest.mark.spark

# A process with an engine of its own: a JVM does not come along into a fork.
_ENGINE = """
import pickle, sys
from pathlib import Path
from hypaware.engine.session import open_session
from hypaware.export import configured
from hypaware.home import Home
from hypaware.testing import between
from tests.iceberg_destination import kind_on
place, work, faults = pickle.loads(Path(sys.argv[1]).read_bytes())
session = open_session(Home.from_environment(), master="local[1]", memory="512m")
with configured.also(between.wrapped(kind_on(session.spark), faults)):
    getattr(place, work)()
session.close()
"""
# Starting an engine takes seconds: a short run kills at the points where the sink's own state changes.
_FEW_POINTS = ("export.ship.before-send", "export.plan.after-mirror", "export.ship.after-answer")


def _live_in_an_engine(work: Callable[[], None], crash_at: str | None = None) -> bool:
    place = work.__self__  # type: ignore[attr-defined]
    assert isinstance(place, Place)
    here = place.home.root.parent
    (here / "work").write_bytes(pickle.dumps((place, work.__name__, here / "faults")))
    done = processes.run(_ENGINE, Home(here / "engine"), here / "work", crash_at=crash_at)
    assert done.returncode == 0 or processes.was_killed(done), done.stderr
    return done.returncode == 0


class TestIcebergTable(SinkContract):
    points = ("export.iceberg.after-files", "export.iceberg.before-commit", "export.iceberg.after-commit")
    session: EngineSession

    @pytest.fixture(autouse=True)
    def _engine(self, engine_session: EngineSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = engine_session
        self.kind = kind_on(engine_session.spark)
        monkeypatch.setattr(contract, "live", _live_in_an_engine)
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
