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
from hypaware.engine import call, client, inline
from hypaware.engine.jobs import OnEvent, unheard
from hypaware.engine.launch import Engine
from hypaware.home import Home
from tests import processes

_CALLER = """
import json, sys
from hypaware import config
from hypaware.engine import call, client
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home

# A second Ctrl-C of a slow test must find the command waiting, not at its end.
call.CANCEL_SECONDS = 600.0
home = Home.from_environment()
engine = Engine(home, jobs="engine_jobs", check=lambda: None)
job, args = sys.argv[1], json.loads(sys.argv[2])
try:
    print(json.dumps(client.run_job(home, config.load(home), job, args, lambda event: None, engine=engine)))
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
    """An engine that knows the jobs of `engine_jobs` and asks for neither Java nor jars."""

    engine: Engine

    @property
    def home(self) -> Home:
        return self.engine.home

    def run(self, job: str, args: dict[str, Any] | None = None, on_event: OnEvent = unheard) -> dict[str, Any]:
        return client.run_job(self.home, config.load(self.home), job, args or {}, on_event, engine=self.engine)

    def command(self, job: str, args: dict[str, Any] | None = None) -> subprocess.Popen[str]:
        """A process of its own that asks for a job, prints what comes of it, and exits as `hyp` does."""
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
    # A job that was cancelled ends within this time on however slow a machine; tests of one that does not say so.
    monkeypatch.setattr(call, "CANCEL_SECONDS", 120.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    home = Home(tmp_path / "home")
    yield EngineOfTests(Engine(home, jobs="engine_jobs", check=lambda: None))
    inline.close()
    client.stop(home)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Arguments of the jobs `wait`, `persist` and `pour`: where they leave their traces."""
    return {name: str(tmp_path / name) for name in ("began", "until", "cancelled", "ended")}
