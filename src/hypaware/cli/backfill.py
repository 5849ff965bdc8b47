"""`hyp backfill`: imports the history that clients keep, and says what there is to import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import json_option
from hypaware.cli.runnable_group import RunnableGroup

if TYPE_CHECKING:
    from hypaware.backfill.registry import Providers, Registered
    from hypaware.backfill.wanted import Wanted
    from hypaware.config import Config
    from hypaware.home import Home

_named = click.argument("providers", nargs=-1, metavar="[PROVIDER]...")
_retention = click.option(
    "--retention-days",
    type=click.IntRange(min=0),
    help="Go back so many days; 0 is no limit.  [retention.default_days of the config]",
)


@click.group(
    "backfill",
    cls=RunnableGroup,
    examples=[
        "hyp backfill",
        "hyp backfill claude --since 30d",
        "hyp backfill --since 2026-11-01 --until 2026-11-15",
        "hyp backfill --dry-run",
    ],
)
@_named
@click.option("--since", metavar="DATE", help="Nothing before it: 2026-11-15, 2026-11-15T08:00Z, 7d, 12h.")
@click.option("--until", metavar="DATE", help="Nothing after it; a day alone is the whole day.")
@_retention
@click.option("--dry-run", is_flag=True, help="Write nothing; report what an import would write.")
@json_option
def backfill(
    providers: tuple[str, ...],
    since: str | None,
    until: str | None,
    retention_days: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the history that your clients keep on this machine.

    Without names, it is that of every enabled client. Run it again at any time: what is there already is not imported
    twice, and files that have not changed are not even opened.
    """
    from hypaware.cli import backfill_summary

    asked = _ask(providers, since, until, retention_days)
    if asked.why_none is not None:
        _nothing_to_run(asked, {"run_id": asked.run_id, "dry_run": dry_run, "providers": []}, as_json)
        return
    report = _run_dry(asked) if dry_run else _run(asked)
    if not as_json:
        backfill_summary.show_run(report, asked.wanted, asked.home)
    _answer(asked, report, as_json)


@backfill.command("list", examples=["hyp backfill list", "hyp backfill list --json"])
@json_option
def list_(as_json: bool) -> None:
    """List the clients whose history can be imported."""
    from hypaware import config as configuration
    from hypaware.backfill import registry
    from hypaware.backfill.selection import is_enabled
    from hypaware.home import Home

    config = configuration.load(Home.from_environment())
    found = registry.providers()
    _warn_of_broken(found)
    if as_json:
        output.emit_json({"providers": [_described(each) for each in found]})
        return
    output.emit_table(
        ["provider", "enabled", "what", "datasets", "from"],
        [
            (
                each.name,
                is_enabled(config, each.name),
                each.provider.summary,
                ", ".join(each.provider.datasets),
                each.plugin,
            )
            for each in found
        ],
    )


@backfill.command("plan", examples=["hyp backfill plan", "hyp backfill plan claude --retention-days 30 --json"])
@_named
@_retention
@json_option
def plan(providers: tuple[str, ...], retention_days: int | None, as_json: bool) -> None:
    """Estimate what an import would read."""
    from hypaware.backfill.plan import plan as make_plan
    from hypaware.cli import backfill_summary

    asked = _ask(providers, retention_days=retention_days)
    if asked.why_none is not None:
        _nothing_to_run(asked, {"run_id": asked.run_id, "providers": []}, as_json)
        return
    found = make_plan(asked.home, asked.config, asked.args)
    if not as_json:
        backfill_summary.show_plan(found)
    _answer(asked, found, as_json)


@dataclass(frozen=True)
class _Asked:
    home: Home
    config: Config
    wanted: Wanted
    run_id: str

    @property
    def why_none(self) -> str | None:
        return self.wanted.selection.why_none

    @property
    def args(self) -> dict[str, Any]:
        return self.wanted.as_args(self.run_id)


def _ask(
    names: Sequence[str], since: str | None = None, until: str | None = None, retention_days: int | None = None
) -> _Asked:
    from datetime import UTC, datetime
    from pathlib import Path

    from hypaware import config as configuration
    from hypaware import telemetry
    from hypaware.backfill import registry
    from hypaware.backfill.wanted import understand
    from hypaware.home import Home

    home = Home.from_environment()
    config = configuration.load(home)
    found = registry.providers()
    _warn_of_broken(found)
    wanted = understand(
        home,
        config,
        found,
        names=names,
        since=since,
        until=until,
        retention_days=retention_days,
        now=datetime.now(UTC),
        variables={**os.environ, "HOME": str(Path.home())},
    )
    return _Asked(home, config, wanted, telemetry.dev_run_id())


def _run(asked: _Asked) -> dict[str, Any]:
    from hypaware.cli.jobs import run_job
    from hypaware.opening import identify

    identify(asked.home)
    return run_job("backfill", asked.args)


def _run_dry(asked: _Asked) -> dict[str, Any]:
    """In this process, not in the engine: an engine of a home that is not there yet would create it."""
    from hypaware.backfill.dry import dry_run
    from hypaware.cli.progress import display

    shown = display()

    def progress(message: str, done: float, total: float, facts: dict[str, Any]) -> None:
        shown.report(message, done, total, **facts)

    try:
        return dry_run(asked.home, asked.config, asked.args, progress)
    finally:
        shown.clear()


def _answer(asked: _Asked, report: dict[str, Any], as_json: bool) -> None:
    """A provider that failed, or that the engine passed over, is never a success."""
    from hypaware.backfill.verdict import trouble
    from hypaware.cli.failure import PartlyFailed

    if error := trouble(report, asked.args["providers"]):
        raise PartlyFailed(error.message, report, kind=error.kind, repair=error.repair)
    if as_json:
        output.emit_json(report)


def _nothing_to_run(asked: _Asked, document: dict[str, Any], as_json: bool) -> None:
    output.note(f"nothing to import: {asked.why_none}")
    if as_json:
        output.emit_json({**document, "reason": asked.why_none})


def _warn_of_broken(found: Providers) -> None:
    for plugin in found.broken:
        output.warn(f"the client {plugin.name}, from {plugin.distribution}, is broken: {plugin.error}")


def _described(each: Registered) -> dict[str, Any]:
    provider = each.provider
    return {
        "name": each.name,
        "plugin": each.plugin,
        "datasets": list(provider.datasets),
        "summary": provider.summary,
    }
