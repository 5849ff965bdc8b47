"""Run an engine job from a command.

    @click.command("flush", cls=Command, examples=["hyp flush"])
    @json_option
    def flush(as_json: bool) -> None:
        \"\"\"Commit spooled rows to the lake now.\"\"\"
        report = run_job("flush", {"dataset": None})
        if as_json:
            output.emit_json(report)
        else:
            output.emit_table(["dataset", "rows"], [(one["dataset"], one["rows_written"]) for one in …])

Progress and notes go to stderr while the job runs, streamed bytes to `on_chunk` (by default stdout). An error of the
job is raised here as the same `HypError`. Ctrl-C cancels the job, then the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypaware import config as configuration
from hypaware.cli import output
from hypaware.cli.progress import Display, display
from hypaware.home import Home

_PROGRESS_KEYS = ("event", "message", "done", "total")


def run_job(
    name: str,
    args: dict[str, Any],
    *,
    on_chunk: Callable[[bytes], None] = output.write_bytes,
) -> dict[str, Any]:
    from hypaware.engine import client as engine

    home = Home.from_environment()
    shown = display()
    try:
        return engine.run_job(home, configuration.load(home), name, args, event_handler(shown, on_chunk))
    finally:
        shown.clear()


def event_handler(shown: Display, on_chunk: Callable[[bytes], None]) -> Callable[[Mapping[str, Any] | bytes], None]:
    """Return a handler that shows progress and notes on stderr and passes result bytes to `on_chunk`."""

    def handle(event: Mapping[str, Any] | bytes) -> None:
        if isinstance(event, bytes):
            shown.clear()
            on_chunk(event)
        elif event["event"] == "progress":
            facts = {name: fact for name, fact in event.items() if name not in _PROGRESS_KEYS}
            shown.report(str(event["message"]), event.get("done"), event.get("total"), **facts)
        elif event["event"] == "note":
            shown.clear()
            output.note(str(event["message"]))

    return handle
