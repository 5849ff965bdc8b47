"""`hyp export`: deliver rows to the sinks, and show the state of every stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import RunnableGroup, json_option, parse_duration, yes_option
from hypaware.cli.dead_letters import dead_letters
from hypaware.cli.jobs import open_existing_home, run_job
from hypaware.config import Config
from hypaware.config import load as load_config
from hypaware.home import Home
from hypaware.text import format_count, format_duration

if TYPE_CHECKING:
    from hypaware.export.destination_change import BindingChange


_NO_SINK = (
    "no sink is configured, so nothing is delivered. To add one: "
    """hyp config set sinks.archive '{ kind = "blob", destination = "/a/folder" }'"""
)
StreamReport = Mapping[str, Any]
"""One stream of a report or of the status, as the JSON document has it."""


@click.group(
    "export",
    cls=RunnableGroup,
    examples=["hyp export", "hyp export team archive", "hyp export team --max-wait 10m", "hyp export --dry-run"],
)
@click.argument("sinks", nargs=-1, metavar="[SINK]...")
@click.option("--dry-run", is_flag=True, help="Send nothing; report what would be delivered to each sink.")
@click.option(
    "--max-wait",
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Wait at most this long in total for destinations that ask to retry later.",
)
@json_option
def export(sinks: tuple[str, ...], dry_run: bool, max_wait: str) -> None:
    """Deliver all pending rows to the named sinks, or to every configured sink.

    Rows in the spool are committed first. You can run it again at any time: interrupted deliveries are finished first,
    and no destination receives a row twice. Exits 0 only if everything was delivered.
    """
    from hypaware.export import dead_letter_rows
    from hypaware.export.status import find_idle_streams, idle_report, select_sinks
    from hypaware.state.home_opener import read_identity

    max_wait_seconds = parse_duration("--max-wait", max_wait, bare_seconds=True)
    home = Home.from_environment()
    config = load_config(home)
    chosen = select_sinks(config, sinks)
    if not chosen:
        output.note(_NO_SINK)
        report: dict[str, Any] = {"sinks": []}
    elif dry_run:
        report = _plan_delivery(home, config, chosen)
    else:
        read_identity(home)
        with open_existing_home(home) as opened:
            idle_streams = find_idle_streams(home, config, opened.store, chosen) if opened else None
        if idle_streams is not None:
            report = idle_report(chosen, idle_streams)
        else:
            report = run_job("export", {"sinks": list(chosen), "max_wait": max_wait_seconds, "budget": None})
    if not output.wants_json():
        show_delivery(report, dry_run=dry_run)
    with open_existing_home(home) as opened:
        letters = dead_letter_rows.list_letters(opened.store) if opened else []
    if count := sum(letter.key.sink in chosen for letter in letters):
        output.note(f"{format_count(count, 'dead letter')} to replay or drop: hyp export dead-letters list")
    _warn_about_unnumbered_rows(home, config, chosen)
    if incomplete := [sink for sink in report["sinks"] if sink["status"] != "ok"]:
        raise output.PartialFailure(
            "not everything was delivered: " + ", ".join(f"{sink['sink']} ({sink['status']})" for sink in incomplete),
            report,
            kind="held" if all(sink["status"] == "held" for sink in incomplete) else "not_delivered",
            repair=list(dict.fromkeys(command for sink in incomplete for command in _repairs(sink))),
        )
    output.emit_document(report)


@export.command("status", examples=["hyp export status", "hyp export status --json"])
@json_option
def status() -> None:
    """Show the progress, the pending rows and the last error of every stream."""
    from hypaware.export.status import read_statuses
    from hypaware.home import daemon_process

    home = Home.from_environment()
    config = load_config(home)
    now = datetime.now(UTC)
    with open_existing_home(home) as opened:
        found = read_statuses(home, config, opened.store, now) if opened else []
    streams = [each.as_json() for each in found]
    if output.emit_document({"streams": streams}):
        return
    if not streams:
        output.emit("no streams yet: the lake has no rows for any sink")
    else:
        columns = ("sink", "dataset", "source", "delivered up to", "of", "rows behind", "behind", "pending", "next")
        output.emit_table(columns, [_status_row(stream, now) for stream in streams])
    for stream in streams:
        for line in _problems(stream, now):
            output.emit(f"{stream['sink']}: {stream['dataset']} of {stream['source']}: {line}")
    _warn_about_unnumbered_rows(home, config, list(config.sinks))
    if not config.sinks:
        output.note(_NO_SINK)
    elif daemon_process.running_daemon(home) is None:
        output.note("the daemon is not running, so there are no scheduled deliveries: hyp daemon start")


@export.command("adopt", examples=["hyp export adopt team", "hyp export adopt team --yes"])
@click.argument("sink")
@yes_option
@json_option
def adopt(sink: str, yes: bool) -> None:
    """Continue delivering to the new destination of SINK, without sending delivered rows again.

    If the delivery record was lost, every row that existed at that moment is treated as delivered. If the home was
    rolled back or copied, only rows that may have arrived are treated so.
    """
    from hypaware.export import destination_change

    what = f"{sink} continues at the destination in the config. Rows that it has already delivered are not sent again."
    _rebind(destination_change.adopt, sink, what, yes)


@export.command("resend", examples=["hyp export resend team", "hyp export resend team --yes"])
@click.argument("sink")
@yes_option
@json_option
def resend(sink: str, yes: bool) -> None:
    """Send every row of the lake to the new destination of SINK, except rows that it already has.

    If SINK is held because the home was rolled back or copied, only the rows that may have arrived are sent.
    """
    from hypaware.export import destination_change

    what = (
        f"{sink} sends every row of the lake to the destination in the config, and drops its dead letters. If it is "
        "held because the home was rolled back or copied, it sends the rows that may have arrived instead."
    )
    _rebind(destination_change.resend, sink, what, yes)


export.add_command(dead_letters)


def _plan_delivery(home: Home, config: Config, chosen: Sequence[str]) -> dict[str, Any]:
    """Plan the delivery in this process, without starting an engine."""
    from hypaware.export.status import dry_run_report
    from hypaware.spool import reader

    for dataset in sorted({dataset for sink in chosen for dataset in config.sinks[sink].datasets}):
        if reader.summarize_spool(home, dataset).segments:
            output.note(f"{dataset} has rows in the spool; a real run commits them first and delivers them too")
    with open_existing_home(home) as opened:
        return dry_run_report(home, config, opened.store if opened else None, chosen, datetime.now(UTC))


def _warn_about_unnumbered_rows(home: Home, config: Config, sinks: Sequence[str]) -> None:
    from hypaware.lake.health import count_unnumbered_rows

    for dataset in sorted({dataset for sink in sinks for dataset in config.sinks[sink].datasets}):
        if rows := sum(count_unnumbered_rows(home, dataset).values()):
            output.warn(
                f"{format_count(rows, 'row')} of {dataset} that another program added without a sequence "
                f"{'is' if rows == 1 else 'are'} not delivered. To number them: hyp verify --repair"
            )


def _repairs(sink: Mapping[str, Any]) -> list[str]:
    errors = [each["error"] for each in (sink, *sink["streams"]) if each.get("error")]
    commands = [command for error in errors for command in error.get("repair", ())]
    if any(error["kind"] == "held" for error in errors):
        commands += [f"hyp export adopt {sink['sink']}", f"hyp export resend {sink['sink']}"]
    if any(stream["dead_letters"] for stream in sink["streams"]):
        commands.append("hyp export dead-letters list")
    return commands


def _rebind(rebind: Callable[..., list[BindingChange]], sink: str, what: str, yes: bool) -> None:
    from hypaware.export.status import select_sinks
    from hypaware.state.home_opener import open_home

    home = Home.from_environment()
    config = load_config(home)
    select_sinks(config, [sink])
    output.confirm(what, yes)
    with closing(open_home(home).store) as store:
        bound = rebind(home, config, store, sink)
    if output.emit_document({"sink": sink, "streams": [each.as_json() for each in bound]}):
        return
    if bound:
        output.emit_table(
            ["dataset", "source", "delivered up to", "old destination", "new destination"],
            [
                (each.key.dataset, each.key.source, each.watermark, each.previous_address, each.address)
                for each in bound
            ],
        )
        output.note(f"next: hyp export {sink}")
    else:
        output.emit(f"{sink} has not delivered anything yet; nothing to change")


def show_delivery(report: Mapping[str, Any], *, dry_run: bool) -> None:
    for sink in report["sinks"]:
        output.emit(f"{sink['sink']}: {sink['status']}")
        if sink["streams"]:
            columns = ["dataset", "source", "would send" if dry_run else "rows", "MB", "chunks", "up to", "status"]
            ordered = sorted(sink["streams"], key=lambda stream: (stream["dataset"], stream["source"]))
            output.emit_table(columns, [_delivery_row(stream, dry_run) for stream in ordered])
        elif not sink.get("error"):
            output.emit("no rows in the lake for this sink yet")
    for sink in report["sinks"]:
        withheld = sum(stream.get("withheld", 0) for stream in sink["streams"])
        redacted: Counter[str] = Counter()
        for stream in sink["streams"]:
            redacted.update(stream.get("redacted", {}))
        if withheld:
            output.note(f"{sink['sink']}: {format_count(withheld, 'private row')} not sent")
        if redacted:
            rules = ", ".join(f"{rule} {count}" for rule, count in redacted.most_common())
            output.note(f"{sink['sink']}: secrets redacted in the sent rows: {rules}")
        if error := sink.get("error"):
            output.warn(f"{sink['sink']}: {error['message']}")
        for stream in sink["streams"]:
            if (problem := stream.get("error")) and problem != error:
                output.warn(f"{sink['sink']}: {stream['dataset']} of {stream['source']}: {problem['message']}")


def _delivery_row(stream: StreamReport, dry_run: bool) -> tuple[object, ...]:
    if error := stream.get("error"):
        outcome = "held" if error["kind"] == "held" else "partial" if stream["chunks"] else "failed"
    else:
        outcome = f"{stream['dead_letters']} refused" if stream["dead_letters"] else "ok"
    size, chunks = (None, None) if dry_run else (round(stream["bytes"] / 1e6, 2), stream["chunks"])
    return (stream["dataset"], stream["source"], stream["rows"], size, chunks, stream["last"], outcome)


def _status_row(stream: StreamReport, now: datetime) -> tuple[object, ...]:
    pending, lag, behind = stream["pending"], stream["lag_rows"], stream["lag_seconds"]
    if stream.get("removed"):
        following = "never"
    elif stream["held"]:
        following = "held"
    else:
        due, retry = stream["next_round"], stream["retry_at"]
        if retry is not None and retry > now:
            due = min(due, retry)
        following = f"in {format_duration((due - now).total_seconds())}"
    return (
        stream["sink"],
        stream["dataset"],
        stream["source"],
        "unknown" if stream["watermark"] is None else stream["watermark"],
        stream["high_water"],
        lag,
        "-" if not lag else "unknown" if behind is None else format_duration(behind),
        pending and f"{pending['chunks_acked']} of {pending['chunks_total']} chunks",
        following,
    )


def _problems(stream: StreamReport, now: datetime) -> Iterable[str]:
    if stream.get("removed"):
        yield "removed from the config; nothing more is delivered"
    moved = stream["delivered_to"] not in (None, stream["address"])
    if moved and stream["address"] and not stream["held"]:
        yield (
            f"was delivered to {stream['delivered_to']}, but the config now names {stream['address']}; "
            f"hyp export adopt {stream['sink']} continues there, hyp export resend {stream['sink']} sends everything"
        )
    if stream["held"]:
        yield f"held: {stream['last_error'] or stream['held']}"
    elif stream["last_error"]:
        retry = stream["retry_at"]
        again = f" (retry in {format_duration((retry - now).total_seconds())})" if retry and retry > now else ""
        yield f"{stream['last_error']}{again}; to try now: hyp export {stream['sink']}"
    if refused := stream["dead_letters"]:
        letters = format_count(refused, "dead letter")
        yield f"{letters} to replay or drop: hyp export dead-letters list --sink {stream['sink']}"
