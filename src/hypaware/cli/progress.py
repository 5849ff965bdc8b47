"""Progress of long work, on stderr: a bar where somebody watches, a line now and then where nobody does.

Work that is measured in bytes (the fact `unit="bytes"`) is shown with its pace: the files and rows so far, where the
work tells them, MB a second, and how long it will take. So is work that is measured in rows and tells its `bytes`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from hypaware.cli import output
from hypaware.terminal import harmless_cell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 5.0

Clock = Callable[[], float]


class Display(Protocol):
    def report(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None: ...

    def clear(self) -> None:
        """Takes away what is half drawn before something else is printed; the next report draws it again."""


def display() -> Display:
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """One line that is drawn over, and gone when the work is done; nothing before the first report."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._pace = Pace(clock)
        self._drawn: tuple[Progress, TaskID] | None = None

    def report(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pace = ", ".join(self._pace.describe(message, done, total, facts))
        if self._drawn is None:
            self._drawn = _start_bar(harmless_cell(message))
        progress, task = self._drawn
        # A bar without a total pulses; to rich, None means "as before".
        progress.update(task, description=harmless_cell(message), completed=done or 0, total=total, pace=pace)

    def clear(self) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()
            self._drawn = None


class Lines:
    """A line when the message changes, and every few seconds while it does not: a log stays readable."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace(clock)
        self._message: str | None = None
        self._due = 0.0

    def report(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pace = self._pace.describe(message, done, total, facts)
        now = self._clock()
        if message == self._message and now < self._due:
            return
        self._message, self._due = message, now + _SECONDS_BETWEEN_LINES
        share = f" {100 * done / total:.0f}%" if done is not None and total else ""
        output.note(", ".join([message + share, *pace]))

    def clear(self) -> None:
        """Lines never stand half drawn."""


class Pace:
    """How fast the work goes that a message names, and when it will be done at that pace."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._message: str | None = None
        self._began, self._done_then, self._moved_then = 0.0, 0.0, 0.0

    def describe(self, message: str, done: float | None, total: float | None, facts: Mapping[str, object]) -> list[str]:
        moved = done if facts.get("unit") == "bytes" else facts.get("bytes")
        if done is None or not isinstance(moved, int | float):
            self._message = None
            return []
        if message != self._message:
            self._message, self._began, self._done_then, self._moved_then = message, self._clock(), done, moved
        return [*_counts(facts), *self._speed(done, total, moved)]

    def _speed(self, done: float, total: float | None, moved: float) -> list[str]:
        elapsed, read = self._clock() - self._began, done - self._done_then
        if elapsed <= 0 or read <= 0:
            return []
        speed = read / elapsed
        shown = [f"{(moved - self._moved_then) / elapsed / 1e6:.1f} MB/s"]
        if total is not None and total > done:
            shown.append(f"{_duration((total - done) / speed)} left")
        return shown


def _counts(facts: Mapping[str, object]) -> list[str]:
    files, of_files, rows = facts.get("files"), facts.get("files_total"), facts.get("rows")
    shown = []
    if isinstance(files, int):
        shown.append(f"{files:,}/{of_files:,} files" if isinstance(of_files, int) else f"{files:,} files")
    if isinstance(rows, int):
        shown.append(f"{rows:,} rows")
    return shown


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _start_bar(message: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class PaceOrTime(TimeElapsedColumn):
        """Where the pace is known, the time that is left says more than the time that has gone."""

        def render(self, task: Task) -> Text:
            pace = task.fields["pace"]
            return Text(pace, style="progress.data.speed") if pace else super().render(task)

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        PaceOrTime(table_column=Column(no_wrap=True)),
        console=Console(file=sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = progress.add_task(message, total=None, pace="")
    progress.start()
    return progress, task
