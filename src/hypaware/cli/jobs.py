"""How a command runs an engine job.

    @click.command("flush", cls=Command, examples=["hyp flush"])
    @json_option
    def flush(as_json: bool) -> None:
        \"\"\"Commit the spool to the lake now.\"\"\"
        report = run_job("flush", {"dataset": None})
        if as_json:
            output.emit_json(report)
        else:
            output.emit_table(["dataset", "rows"], [(one["dataset"], one["rows_written"]) for one in …])

Progress and notes go to stderr while it runs, streamed bytes to `on_chunk` (stdout unless told otherwise).
The job's own error comes back as the `HypError` that it raised there; Ctrl-C cancels the job and then this
command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypaware import config as configuration
from hypaware.cli import output
from hypaware.cli.progress import Display, display
from hypaware.home import Home

_OF_PROGRESS = ("event", "message", "done", "total")


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
    """Shows what a job says: progress and notes for the user, bytes for the result."""

    def handle(event: Mapping[str, Any] | bytes) -> None:
        if isinstance(event, bytes):
            shown.clear()
            on_chunk(event)
        elif event["event"] == "progress":
            facts = {name: fact for name, fact in event.items() if name not in _OF_PROGRESS}
            shown.report(str(event["message"]), event.get("done"), event.get("total"), **facts)
        elif event["event"] == "note":
            shown.clear()
            output.note(str(event["message"]))

    return handle
