"""A task for tests of Spark's workers. They cannot import the tests: register the module to be pickled by value."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from hypaware.lake.build import BuildResult

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class GatedTask:
    """Tells that it runs, and ends when its gate is opened."""

    number: int
    folder: Path

    @property
    def is_running(self) -> bool:
        return self._mark.exists()

    @property
    def is_open(self) -> bool:
        return self._gate.exists()

    def open(self) -> None:
        self._gate.touch()

    def run(self) -> BuildResult:
        self._mark.touch()
        never = threading.Event()
        while not self.is_open:
            never.wait(_POLL_SECONDS)
        return BuildResult(reports=[self.number])

    @property
    def _mark(self) -> Path:
        return self.folder / f"runs-{self.number}"

    @property
    def _gate(self) -> Path:
        return self.folder / f"gate-{self.number}"
