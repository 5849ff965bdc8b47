"""`hyp export`: deliver rows to the sinks, and show the state of every stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.dead_letters import dead_letters
from hypaware.cli.export_binding import adopt, resend
from hypaware.cli.group import json_option
from hypaware.cli.looking import looking_into
from hypaware.cli.runnable_group import RunnableGroup

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.home import Home

_NO_SINK = (
    "no sink is configured, so nothing is delivered. To add one: "
    """hyp config set sinks.archive '{ kind = "blob", destination = "/a/folder" }'"""
)


@click.group(
    "export",
    cls=RunnableGroup,
    examples=[
        "hyp export",
        "hyp export team archive",
        "hyp export team --max-wait 10m",
        "hyp export --dry-run",
    ],
)
@click.argument("sinks", nargs=-1, metavar="[SINK]...")
@click.option("--dry-run", is_flag=True, help="Send nothing; report what would be delivered to each sink.")
@click.option(
    "--max-wait",
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Total time to wait for destinations that ask to retry later.",
)
@json_option
def export(sinks: tuple[str, ...], dry_run: bool, max_wait: str, as_json: bool) -> None:
    """Deliver all pending rows to the named sinks, or to every configured sink.

    Rows in the spool are committed first. You can run it again at any time: interrupted deliveries are finished first,
    and no destination receives a row twice. Exits 0 only if everything was delivered.
    """
    from hypaware import config as configuration
    from hypaware.cli import export_summary
    from hypaware.export.configured import chosen as choose
    from hypaware.home import Home

    max_wait_seconds = _seconds(max_wait)
    home = Home.from_environment()
    config = configuration.load(home)
    chosen = choose(config, sinks)
    if not chosen:
        output.note(_NO_SINK)
        report: dict[str, Any] = {"sinks": []}
    elif dry_run:
        report = _would_deliver(home, config, chosen)
    else:
        report = _deliver(home, config, chosen, max_wait_seconds)
    if not as_json:
        export_summary.show_round(report, dry_run=dry_run)
    _mention_dead_letters(home, chosen)
    _finish(report, as_json)


@export.command("status", examples=["hyp export status", "hyp export status --json"])
@json_option
def status(as_json: bool) -> None:
    """Show for every stream how far it is delivered, what is pending, and its last error."""
    from datetime import UTC, datetime

    from hypaware import config as configuration
    from hypaware.cli import export_summary
    from hypaware.daemon import instance
    from hypaware.export import status as standing
    from hypaware.home import Home

    home = Home.from_environment()
    config = configuration.load(home)
    now = datetime.now(UTC)
    with looking_into(home) as opened:
        found = standing.report(home, config, opened.store, now) if opened else []
    streams = [each.as_json() for each in found]
    if as_json:
        output.emit_json({"streams": streams})
        return
    export_summary.show_status(streams, now)
    if not config.sinks:
        output.note(_NO_SINK)
    elif instance.running(home) is None:
        output.note("the daemon is not running, so there are no scheduled deliveries: hyp daemon start")


export.add_command(adopt)
export.add_command(resend)
export.add_command(dead_letters)


def _seconds(text: str) -> float:
    from hypaware.config.values import DURATION
    from hypaware.errors import UsageError

    try:
        return float(text) if text.isdecimal() else float(DURATION.read(text))
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(f"--max-wait {text!r}{reason}: expected {DURATION.expected}, such as 90s or 10m") from None


def _deliver(home: Home, config: Config, chosen: Sequence[str], max_wait: float) -> dict[str, Any]:
    from hypaware.cli.jobs import run_job
    from hypaware.export.foretold import at_rest
    from hypaware.export.status import idle
    from hypaware.opening import identify

    identify(home)
    with looking_into(home) as opened:
        idle_streams = idle(home, config, opened.store, chosen) if opened else None
    if idle_streams is not None:
        return at_rest(chosen, idle_streams)
    return run_job("export", {"sinks": list(chosen), "max_wait": max_wait, "budget": None})


def _would_deliver(home: Home, config: Config, chosen: Sequence[str]) -> dict[str, Any]:
    """Plan the delivery in this process, without starting an engine."""
    from datetime import UTC, datetime

    from hypaware.export.foretold import would_deliver
    from hypaware.spool import reader

    for dataset in sorted({dataset for sink in chosen for dataset in config.sinks[sink].datasets}):
        if reader.waiting(home, dataset).segments:
            output.note(f"{dataset} has rows in the spool; a real run commits them first and delivers them too")
    with looking_into(home) as opened:
        return would_deliver(home, config, opened.store if opened else None, chosen, datetime.now(UTC))


def _mention_dead_letters(home: Home, chosen: Sequence[str]) -> None:
    from hypaware.export import refused

    with looking_into(home) as opened:
        letters = [letter for letter in refused.listed(opened.store) if letter.key.sink in chosen] if opened else []
    if letters:
        noun = "dead letter" if len(letters) == 1 else "dead letters"
        output.note(f"{len(letters)} {noun} to replay or drop: hyp export dead-letters list")


def _finish(report: dict[str, Any], as_json: bool) -> None:
    """Print the JSON report; fail unless every sink received everything."""
    from hypaware.cli.failure import PartlyFailed

    incomplete = [sink for sink in report["sinks"] if sink["status"] != "ok"]
    if incomplete:
        raise PartlyFailed(
            "not everything was delivered: " + ", ".join(f"{sink['sink']} ({sink['status']})" for sink in incomplete),
            report,
            kind="held" if all(sink["status"] == "held" for sink in incomplete) else "not_delivered",
            repair=list(dict.fromkeys(command for sink in incomplete for command in _repairs(sink))),
        )
    if as_json:
        output.emit_json(report)


def _repairs(sink: Mapping[str, Any]) -> list[str]:
    errors = [each["error"] for each in (sink, *sink["streams"]) if each.get("error")]
    commands = [command for error in errors for command in error.get("repair", ())]
    if any(error["kind"] == "held" for error in errors):
        commands += [f"hyp export adopt {sink['sink']}", f"hyp export resend {sink['sink']}"]
    if any(stream["dead_letters"] for stream in sink["streams"]):
        commands.append("hyp export dead-letters list")
    return commands
