"""`hyp maintain`: compaction, retention and expiry now, instead of when the daemon finds the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.cli.looking import looking_into

if TYPE_CHECKING:
    from datetime import datetime

    from hypaware.config import Config
    from hypaware.home import Home
    from hypaware.model.datasets import Dataset


@click.command(
    "maintain",
    cls=Command,
    examples=[
        "hyp maintain",
        "hyp maintain --dry-run",
        "hyp maintain ai_gateway_messages --expire-only --json",
        "hyp maintain --compact-only --force --budget 30m",
    ],
)
@click.argument("dataset", required=False)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--force", is_flag=True, help="Compact the newest files too, and keep no snapshot for others to read.")
@click.option("--compact-only", is_flag=True, help="Only turn many small files into few.")
@click.option("--expire-only", is_flag=True, help="Only drop days that are over, and free the space of what is gone.")
@click.option("--rebuild", is_flag=True, help="Write the whole table anew; for one that is damaged.")
@click.option(
    "--budget", metavar="DURATION", help="Begin nothing new after this time; what is left is done by the next run."
)
@json_option
def maintain(
    dataset: str | None,
    dry_run: bool,
    force: bool,
    compact_only: bool,
    expire_only: bool,
    rebuild: bool,
    budget: str | None,
    as_json: bool,
) -> None:
    """Keep the lake in shape: compaction, retention, expiry; of one dataset or of all.

    The daemon does this by itself. It is safe at any time, beside everything else, and may be broken off. Days that are
    over are dropped only when every configured sink has had them. Where nothing is due, no engine is started.
    """
    from datetime import UTC, datetime

    from hypaware import config as configuration
    from hypaware.cli import maintain_summary
    from hypaware.home import Home

    args = {
        "dataset": dataset,
        "force": force,
        "only": _only(compact_only, expire_only, rebuild),
        "rebuild": rebuild,
        "budget": _seconds(budget),
    }
    home = Home.from_environment()
    config = configuration.load(home)
    report = _maintained(home, config, args, dry_run, datetime.now(UTC))
    if not as_json:
        maintain_summary.show(report, dry_run=dry_run)
    _answer(report, as_json)


def _maintained(home: Home, config: Config, args: dict[str, Any], dry_run: bool, now: datetime) -> dict[str, Any]:
    from hypaware.cli.jobs import run_job
    from hypaware.lake import standing

    wanted = _datasets(home, args["dataset"], rebuild=args["rebuild"])
    with looking_into(home) as opened:
        if not args["rebuild"]:
            standing.check_tables(home, [args["dataset"]] if args["dataset"] else None)
        if opened is None or not wanted:
            return {"datasets": []}
        if not (args["force"] or args["rebuild"]):
            from hypaware.maintain.due import all_due
            from hypaware.maintain.resting import at_rest

            if not {each.name for each in wanted} & set(all_due(home, config, opened.store, now, args["only"])):
                return at_rest(home, config, opened.store, wanted, now, args["only"])
        if dry_run:
            from hypaware.maintain.foretold import would_do

            return would_do(home, config, opened.store, wanted, args, now, output.note)
    return run_job("maintain", args)


def _datasets(home: Home, name: str | None, *, rebuild: bool) -> Sequence[Dataset]:
    """Those that are meant and have a table; a rebuild may make one from the files that are left of it."""
    from hypaware.lake import metadata
    from hypaware.model import datasets

    named = [datasets.get(name)] if name else datasets.all()
    present = {entry.name for entry in metadata.entries(home)}
    if rebuild:
        from hypaware.maintain.generation import folders

        return [each for each in named if each.name in present or folders(home, each.name)]
    return [each for each in named if each.name in present]


def _only(compact_only: bool, expire_only: bool, rebuild: bool) -> str | None:
    from hypaware.errors import UsageError

    if sum((compact_only, expire_only, rebuild)) > 1:
        raise UsageError("--compact-only, --expire-only and --rebuild exclude one another")
    return "compact" if compact_only else "expire" if expire_only else None


def _seconds(text: str | None) -> float | None:
    from hypaware.config.values import DURATION
    from hypaware.errors import UsageError

    if text is None:
        return None
    try:
        return float(DURATION.read(text))
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(f"--budget {text!r}{reason}: expected {DURATION.expected}, such as 90s or 10m") from None


def _answer(report: dict[str, Any], as_json: bool) -> None:
    from hypaware.cli.failure import PartlyFailed

    failed = [each for each in report["datasets"] if each["errors"]]
    if failed:
        raise PartlyFailed(
            "; ".join(f"{each['dataset']}: {error}" for each in failed for error in each["errors"]),
            report,
            kind="maintenance_failed",
            repair="hyp verify",
        )
    if as_json:
        output.emit_json(report)
