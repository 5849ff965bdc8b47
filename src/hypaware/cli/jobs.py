"""Engine jobs for commands, the progress of long work, and access to the state of a home.

Progress is shown on stderr: a bar on a terminal, otherwise a line every few seconds. Work measured in bytes (the fact
`unit="bytes"`), or in rows with the fact `bytes`, is shown with its speed: files and rows so far if known, MB per
second, and the remaining time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.home import Home
from hypaware.state.location import has_state
from hypaware.text import escape_cell, format_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hypaware.state.home_opener import OpenHome

_PROGRESS_KEYS = ("event", "message", "done", "total")
_SECONDS_BETWEEN_LINES = 5.0
Clock = Callable[[], float]


def run_job(
    name: str, args: dict[str, Any], *, on_chunk: Callable[[bytes], None] = output.write_bytes
) -> dict[str, Any]:
    """Run an engine job of the current home and return its report.

    Progress and notes go to stderr while the job runs, streamed bytes to `on_chunk`. An error of the job is raised here
    as the same `HypError`. Ctrl-C cancels the job, then the command.
    """
    from hypaware.config import load as load_config
    from hypaware.engine import client

    home = Home.from_environment()
    engine = client.choose_engine(home, load_config(home))
    with open_progress() as bar:
        return client.run_job(engine, name, args, event_handler(bar, on_chunk))


def event_handler(
    bar: ProgressDisplay, on_chunk: Callable[[bytes], None] = output.write_bytes
) -> Callable[[Mapping[str, Any] | bytes], None]:
    """Return a handler that shows progress and notes on stderr and passes result bytes to `on_chunk`."""

    def handle(event: Mapping[str, Any] | bytes) -> None:
        if isinstance(event, bytes):
            bar.clear()
            on_chunk(event)
        elif event["event"] == "progress":
            facts = {name: fact for name, fact in event.items() if name not in _PROGRESS_KEYS}
            bar.report(str(event["message"]), event.get("done"), event.get("total"), **facts)
        elif event["event"] == "note":
            bar.clear()
            output.note(str(event["message"]))

    return handle


@contextmanager
def open_existing_home(home: Home) -> Iterator[OpenHome | None]:
    """Open the home, or give None if it has no state; never create one."""
    from hypaware.state.home_opener import open_home

    if not has_state(home):
        yield None
        return
    opened = open_home(home)
    with closing(opened.store):
        if opened.rebuilt:
            output.warn(opened.rebuilt)
        yield opened


@contextmanager
def open_progress() -> Iterator[ProgressDisplay]:
    """Give a display for stderr, and clear it at the end."""
    display = ProgressBar() if sys.stderr.isatty() else ProgressLines()
    try:
        yield display
    finally:
        display.clear()


class ProgressBar:
    """A progress bar on one line. It appears with the first report and disappears at the end."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._pace = Throughput(clock)
        self._drawn: tuple[Progress, TaskID] | None = None

    def report(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pace = ", ".join(self._pace.describe(message, done, total, facts))
        if self._drawn is None:
            self._drawn = _start_bar(escape_cell(message))
        progress, task = self._drawn
        # A bar without a total pulses. For `completed`, None would mean "unchanged" to rich.
        progress.update(task, description=escape_cell(message), completed=done or 0, total=total, pace=pace)

    def clear(self) -> None:
        """Remove a partly drawn bar before other output; the next report draws it again."""
        if self._drawn is not None:
            self._drawn[0].stop()
            self._drawn = None


class ProgressLines:
    """A line whenever the message changes, and every few seconds while it does not."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pace = Throughput(clock)
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
        """Do nothing: lines are never partly drawn."""


ProgressDisplay = ProgressBar | ProgressLines


class Throughput:
    """The speed of the work that a message names, and the time it still takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._message: str | None = None
        self._started_at, self._done_at_start, self._bytes_at_start = 0.0, 0.0, 0.0

    def describe(self, message: str, done: float | None, total: float | None, facts: Mapping[str, object]) -> list[str]:
        moved = done if facts.get("unit") == "bytes" else facts.get("bytes")
        if done is None or not isinstance(moved, int | float):
            self._message = None
            return []
        if message != self._message:
            self._message, self._started_at = message, self._clock()
            self._done_at_start, self._bytes_at_start = done, moved
        shown = []
        files, files_total, rows = facts.get("files"), facts.get("files_total"), facts.get("rows")
        if isinstance(files, int):
            shown.append(f"{files:,}/{files_total:,} files" if isinstance(files_total, int) else f"{files:,} files")
        if isinstance(rows, int):
            shown.append(f"{rows:,} rows")
        elapsed, progress = self._clock() - self._started_at, done - self._done_at_start
        if elapsed > 0 and progress > 0:
            shown.append(f"{(moved - self._bytes_at_start) / elapsed / 1e6:.1f} MB/s")
            if total is not None and total > done:
                shown.append(f"{format_duration((total - done) / (progress / elapsed))} left")
        return shown


def _start_bar(message: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class PaceOrTime(TimeElapsedColumn):
        """Shows the speed and the remaining time if known, otherwise the elapsed time."""

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
