"""Access to the engine and to the state of a home, for commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.progress import ProgressDisplay, open_progress
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.state.home_opener import OpenHome

_PROGRESS_KEYS = ("event", "message", "done", "total")


def run_job(
    name: str,
    args: dict[str, Any],
    *,
    on_chunk: Callable[[bytes], None] = output.write_bytes,
) -> dict[str, Any]:
    """Run an engine job of the current home and return its report.

    Progress and notes go to stderr while the job runs, streamed bytes to `on_chunk`. An error of the job is raised here
    as the same `HypError`. Ctrl-C cancels the job, then the command.
    """
    from hypaware.config import load as load_config
    from hypaware.engine import client

    home = Home.from_environment()
    with open_progress() as bar:
        return client.run_job(home, load_config(home), name, args, event_handler(bar, on_chunk))


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

    if not home.state.is_file():
        yield None
        return
    opened = open_home(home)
    try:
        if opened.rebuilt:
            output.warn(opened.rebuilt)
        yield opened
    finally:
        opened.store.close()
