"""The output of `hyp setup`: a line per step while it runs, then the import, an overview and example queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from hypaware.cli import output
from hypaware.terminal import harmless

if TYPE_CHECKING:
    from hypaware.setup.plan import Plan, Step
    from hypaware.setup.run import Result

_MARKS = {
    "done": ("+", "green"),
    "would": ("+", "green"),
    "unchanged": ("=", "dim"),
    "skipped": ("-", "yellow"),
    "failed": ("!", "bold red"),
}

QUERIES = {
    "What did my agents do each day?": (
        "SELECT date, count(DISTINCT session_id) AS sessions, count(DISTINCT message_id) AS messages "
        "FROM ai_gateway_messages GROUP BY date ORDER BY date DESC LIMIT 14"
    ),
    "Which tools do they use?": (
        "SELECT tool_name, count(*) AS calls FROM ai_gateway_messages "
        "WHERE part_type = 'tool_call' GROUP BY tool_name ORDER BY calls DESC LIMIT 10"
    ),
    "Which messages mention errors?": (
        "SELECT message_created_at, cwd, left(content_text, 80) AS text FROM ai_gateway_messages "
        "WHERE content_text ILIKE '%error%' ORDER BY message_created_at DESC LIMIT 10"
    ),
}


def tell(step: Step, stream: TextIO) -> None:
    """Print one line for the step, then its notes and commands; in colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    mark, style = _MARKS[step.status]
    line = Text(f"{mark} ", style=style) + Text(f"{step.name:<7} ", style="bold") + Text(harmless(step.message))
    console.print(line)
    for note in step.notes:
        console.print(Text(f"{'':10}{harmless(note)}", style="dim"))
    label = {"skipped": "later", "failed": "try"}.get(step.status)
    for command in step.commands if label else ():
        console.print(Text(f"{'':10}{label}: {harmless(command)}", style="dim"))
    stream.flush()


def show(result: Result, plan: Plan) -> None:
    if result.dry_run:
        _show_steps(result)
    _show_import(result)
    if result.dry_run:
        output.note("dry run: nothing was changed")
        return
    if result.overview is not None:
        from hypaware.cli.overview import Look, draw

        output.emit()
        output.emit(draw(result.overview, Look.of(sys.stdout)))
        output.emit("\nTry these queries:\n")
        for question, sql in QUERIES.items():
            output.emit(f'# {question}\nhyp query sql "{sql}"\n')
    for line in _next(result, plan):
        output.note(f"next: {line}")


def _show_steps(result: Result) -> None:
    for step in result.steps:
        tell(step, sys.stdout)
        if diff := step.facts.get("diff"):
            output.emit("\n".join(f"    {line}" for line in str(diff).splitlines()))


def _show_import(result: Result) -> None:
    from hypaware.cli import backfill_summary

    report = result.backfill
    if report is None:
        return
    written = "would write" if result.dry_run else "written"
    output.emit()
    output.emit_table(
        ["client", "status", "scanned", written, "skipped", "rejected", "from", "to"],
        [
            (
                each["provider"],
                each["status"],
                f"{each['items_seen']:,}",
                f"{each['rows_written']:,}",
                f"{each['rows_skipped']:,}",
                f"{each['rows_rejected']:,}",
                each["summary"]["first_day"],
                each["summary"]["last_day"],
            )
            for each in report["providers"]
        ],
    )
    for each in report["providers"]:
        for line in backfill_summary.left_out(each):
            output.emit(f"{each['provider']}: {line}")
    for each in report["providers"]:
        backfill_summary.warn_of_trouble(each, result.home, result.dry_run)


def _next(result: Result, plan: Plan) -> Iterator[str]:
    """Yield the next steps for the user."""
    from hypaware.backfill.selection import is_enabled
    from hypaware.clients import undo

    made = result.configured
    sink = made.config.sinks.get(made.sink) if made.sink else None
    if sink is not None and sink.kind == "forward":
        yield from _token(str(sink.options.get("token_file") or ""), made.sink or "")
    if sink is not None and sink.kind == "blob":
        yield f"the daemon delivers rows to {sink.options['destination']}; to deliver now: hyp export"
    if any("url" in change or "destination" in change for change in made.changes):
        yield f"{made.sink} has a new destination: hyp export adopt {made.sink}, or hyp export resend {made.sink}"
    for each in plan.found:
        if not is_enabled(made.config, each.name) and undo.read(plan.home, each.name):
            yield f"{each.name} is disabled but still attached to the gateway: hyp client detach {each.name}"
    if any(step.name == "daemon" and step.status == "done" for step in result.steps):
        yield "to start the daemon with every login: hyp daemon install"
    if any(step.name == "attach" and step.status == "done" for step in result.steps):
        yield "running sessions are not recorded live; start a new one, then check: hyp status"


def _token(file: str, sink: str) -> Iterator[str]:
    from pathlib import Path

    if not file:
        yield f"if the server requires a token: hyp config set sinks.{sink}.token_file FILE"
    elif not Path(file).expanduser().is_file():
        yield f"put the server's token into {file} (the server's operator creates one with hyp server token create)"
