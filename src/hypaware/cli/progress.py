"""Progress of long work, on stderr: a bar where somebody watches, a line now and then where nobody does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hypaware.cli import output
from hypaware.terminal import harmless_cell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 5.0


class Display(Protocol):
    def report(self, message: str, done: float | None = None, total: float | None = None) -> None: ...

    def clear(self) -> None:
        """Takes away what is half drawn before something else is printed; the next report draws it again."""


def display() -> Display:
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """One line that is drawn over, and gone when the work is done; nothing before the first report."""

    def __init__(self) -> None:
        self._drawn: tuple[Progress, TaskID] | None = None

    def report(self, message: str, done: float | None = None, total: float | None = None) -> None:
        if self._drawn is None:
            self._drawn = _start_bar(harmless_cell(message))
        progress, task = self._drawn
        # A bar without a total pulses; to rich, None means "as before".
        progress.update(task, description=harmless_cell(message), completed=done or 0, total=total)

    def clear(self) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()
            self._drawn = None


class Lines:
    """A line when the message changes, and every few seconds while it does not: a log stays readable."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._message: str | None = None
        self._due = 0.0

    def report(self, message: str, done: float | None = None, total: float | None = None) -> None:
        now = self._clock()
        if message == self._message and now < self._due:
            return
        self._message, self._due = message, now + _SECONDS_BETWEEN_LINES
        share = f" {100 * done / total:.0f}%" if done is not None and total else ""
        output.note(message + share)

    def clear(self) -> None:
        """Lines never stand half drawn."""


def _start_bar(message: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = progress.add_task(message, total=None)
    progress.start()
    return progress, task
