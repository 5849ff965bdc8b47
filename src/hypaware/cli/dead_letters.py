"""`hyp export dead-letters`: list, show, replay and drop rows that a sink refused permanently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hypaware import config
from hypaware.cli import output
from hypaware.cli.command import RunnableGroup, json_option, yes_option
from hypaware.cli.jobs import open_existing_home, run_job
from hypaware.errors import HypError, Retryable, UsageError
from hypaware.home import Home
from hypaware.text import format_count

if TYPE_CHECKING:
    from hypaware.state.dead_letters import DeadLetter
    from hypaware.state.home_opener import OpenHome

_ID_PREFIX = 12
_sink_option = click.option("--sink", metavar="SINK", help="Select only dead letters of this sink.")


@click.group(
    "dead-letters",
    cls=RunnableGroup,
    examples=["hyp export dead-letters", "hyp export dead-letters show 3f9c", "hyp export dead-letters replay --all"],
)
@_sink_option
@json_option
def dead_letters(sink: str | None) -> None:
    """List rows that a destination refused permanently, or replay or drop them.

    A dead letter is kept with the reason; all other rows were delivered. Fix the cause at the destination and replay
    it, or drop it. Without a subcommand, list all dead letters.
    """
    _print_list(sink)


@dead_letters.command(
    "list", examples=["hyp export dead-letters list", "hyp export dead-letters list --sink team --json"]
)
@_sink_option
@json_option
def list_(sink: str | None) -> None:
    """List dead letters, oldest first."""
    _print_list(sink)


@dead_letters.command(
    "show", examples=["hyp export dead-letters show 3f9c", "hyp export dead-letters show 3f9c --json"]
)
@click.argument("letter", metavar="ID")
@json_option
def show(letter: str) -> None:
    """Show a dead letter with its rows. A unique prefix of the ID is enough."""
    from hypaware.export import dead_letter_rows
    from hypaware.export.rows import make_gate

    def read_lake(args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        chunks: list[bytes] = []
        report = run_job("read", args, on_chunk=chunks.append)
        return report, b"".join(chunks)

    with _open_letters([letter]) as (opened, (found,)):
        gate = make_gate(opened.home, config.load(opened.home))
        rows = dead_letter_rows.read_rows(opened.store, found, read_lake, gate)
    if output.emit_document({**found.as_json(), "payload": rows}):
        return
    output.emit_fields(found.as_json())
    for row in rows:
        output.emit()
        output.emit_fields(row)


@dead_letters.command(
    "replay",
    examples=[
        "hyp export dead-letters replay 3f9c",
        "hyp export dead-letters replay --all",
        "hyp export dead-letters replay --all --sink team",
    ],
)
@click.argument("letters", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Replay all dead letters, or all of --sink.")
@_sink_option
@json_option
def replay(letters: tuple[str, ...], every: bool, sink: str | None) -> None:
    """Deliver dead letters again. However often you do this, a row arrives only once."""
    if bool(letters) == every:
        raise UsageError("Name at least one dead letter, or pass --all.", repair="hyp export dead-letters list")
    if sink is not None and not every:
        raise UsageError("--sink requires --all.")
    if every:
        ids = [letter.id for letter in _find_letters(sink)]
    else:
        with _open_letters(letters) as (_, named):
            ids = [letter.id for letter in named]
    outcomes = []
    for letter_id in ids:
        try:
            outcomes.append(run_job("replay", {"id": letter_id}))
        except Retryable as error:
            # Report it instead of raising it, so that the others are tried.
            outcomes.append({"id": letter_id, "status": "failed", "reason": error.message})
    report = {"replayed": outcomes}
    if not output.wants_json():
        output.emit_table(
            ["id", "status", "reason"],
            [(each["id"][:_ID_PREFIX], each["status"], each.get("reason")) for each in outcomes],
        )
    if failed := [each for each in outcomes if each["status"] != "delivered"]:
        raise output.PartialFailure(
            f"{len(failed)} of {len(outcomes)} dead letters were not delivered; they are kept",
            report,
            kind="not_delivered",
            repair="hyp export dead-letters list",
        )
    output.emit_document(report)


@dead_letters.command("drop", examples=["hyp export dead-letters drop 3f9c", "hyp export dead-letters drop 3f9c --yes"])
@click.argument("letters", metavar="ID...", nargs=-1, required=True)
@yes_option
@json_option
def drop(letters: tuple[str, ...], yes: bool) -> None:
    """Drop dead letters. Their rows stay in the lake but are never delivered to that sink."""
    from hypaware.export import dead_letter_rows

    with _open_letters(letters) as (opened, chosen):
        rows, sinks = sum(letter.rows for letter in chosen), ", ".join(dict.fromkeys(each.key.sink for each in chosen))
        output.confirm(f"{format_count(rows, 'row')} will never be delivered to {sinks}.", yes)
        dead_letter_rows.drop_letters(opened.home, opened.store, chosen)
    output.emit_result(
        {"dropped": [letter.id for letter in chosen]}, f"{format_count(len(chosen), 'dead letter')} dropped"
    )


def _print_list(sink: str | None) -> None:
    found = _find_letters(sink)
    if output.emit_document({"dead_letters": [letter.as_json() for letter in found]}):
        return
    if not found:
        output.emit("no dead letters")
        return
    rows = []
    for letter in found:
        stream = (letter.key.sink, letter.key.dataset, letter.key.source)
        sequences = f"{letter.after + 1}-{letter.last}"
        rows.append((letter.id[:_ID_PREFIX], *stream, sequences, letter.rows, letter.at, letter.reason))
    output.emit_table(["id", "sink", "dataset", "source", "sequences", "rows", "since", "reason"], rows)


def _find_letters(sink: str | None) -> list[DeadLetter]:
    from hypaware.export import dead_letter_rows
    from hypaware.export.status import select_sinks

    home = Home.from_environment()
    with open_existing_home(home) as opened:
        found = dead_letter_rows.list_letters(opened.store, sink) if opened else []
    if sink is not None and not found:
        select_sinks(config.load(home), [sink])
    return found


@contextmanager
def _open_letters(ids: Sequence[str]) -> Iterator[tuple[OpenHome, list[DeadLetter]]]:
    """Open the home and find the named dead letters."""
    from hypaware.export import dead_letter_rows

    with open_existing_home(Home.from_environment()) as opened:
        if opened is None:
            raise HypError(
                f"unknown dead letter {ids[0]!r}: nothing was ever delivered from this home", kind="unknown_dead_letter"
            )
        yield opened, dead_letter_rows.find_letters(opened.store, ids)
