from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypaware import config
from hypaware.engine import client, inline
from hypaware.engine.jobs import OnEvent, ignore_events
from hypaware.engine.launcher import Engine
from hypaware.home import Home
from tests.support import processes
from tests.support.processes import PATIENCE

_CALLER = """
import json, sys
from hypaware import config
from hypaware.engine import client
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError
from hypaware.home import Home

home = Home.from_environment()
engine = Engine(home, jobs="tests.support.engine_jobs", check=lambda: None)
job, args = sys.argv[1], json.loads(sys.argv[2])
try:
    engine = client.choose_engine(home, config.load(home), engine)
    # A second Ctrl-C of a slow test must find the command waiting, not at its end.
    print(json.dumps(client.run_job(engine, job, args, cancel_seconds=600.0)))
except HypError as error:
    print(json.dumps({"error": error.as_json()}))
    sys.exit(error.exit_code)
"""

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def eventually() -> Eventually:
    return processes.eventually


@dataclass(frozen=True)
class EngineOfTests:
    """An engine with the jobs of `engine_jobs`, which needs neither Java nor jars."""

    engine: Engine

    @property
    def home(self) -> Home:
        return self.engine.home

    def run(
        self,
        job: str,
        args: dict[str, Any] | None = None,
        on_event: OnEvent = ignore_events,
        cancel_seconds: float = PATIENCE,
    ) -> dict[str, Any]:
        chosen = client.choose_engine(self.home, config.load(self.home), self.engine)
        return client.run_job(chosen, job, args or {}, on_event, cancel_seconds=cancel_seconds)

    def command(self, job: str, args: dict[str, Any] | None = None) -> subprocess.Popen[str]:
        """Start a process that runs a job, prints its events and result, and exits as `hyp` does."""
        return subprocess.Popen(
            [sys.executable, "-c", _CALLER, job, json.dumps(args or {})],
            env={**os.environ, "HYP_HOME": str(self.home.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def configure(self, text: str) -> None:
        self.home.root.mkdir(parents=True, exist_ok=True)
        self.home.config.write_text(f"version = 1\n{text}\n")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineOfTests]:
    for name in ("HYP_ENGINE", "HYP_CRASH_AT", "DEV_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    home = Home(tmp_path / "home")
    yield EngineOfTests(Engine(home, jobs="tests.support.engine_jobs", check=lambda: None))
    inline.close_inline()
    client.stop_engine(home)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Arguments of the jobs `wait`, `persist` and `pour`: the files that they write."""
    return {name: str(tmp_path / name) for name in ("began", "until", "cancelled", "ended")}
