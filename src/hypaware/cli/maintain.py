"""`hyp maintain`: compact, apply retention and expire snapshots now instead of waiting for the daemon."""

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
@click.option("--dry-run", is_flag=True, help="Change nothing; report what would be done.")
@click.option("--force", is_flag=True, help="Also compact the newest files, and expire all old snapshots at once.")
@click.option("--compact-only", is_flag=True, help="Only merge small files into larger ones.")
@click.option("--expire-only", is_flag=True, help="Only drop expired days and free their disk space.")
@click.option("--rebuild", is_flag=True, help="Rewrite the whole table, to repair a damaged one.")
@click.option("--budget", metavar="DURATION", help="Start no new work after this time; the next run does the rest.")
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
    """Compact the lake, apply retention and expire old snapshots, of DATASET or of all datasets.

    The daemon does this automatically. It is safe to run or to interrupt at any time. Days that are older than the
    retention are dropped only after every configured sink has received them. If nothing is due, no engine is started.
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
    report = _run(home, config, args, dry_run, datetime.now(UTC))
    if not as_json:
        maintain_summary.show(report, dry_run=dry_run)
    _finish(report, as_json)


def _run(home: Home, config: Config, args: dict[str, Any], dry_run: bool, now: datetime) -> dict[str, Any]:
    from hypaware.cli.jobs import run_job
    from hypaware.lake import standing

    selected = _datasets(home, args["dataset"], rebuild=args["rebuild"])
    with looking_into(home) as opened:
        if not args["rebuild"]:
            standing.check_tables(home, [args["dataset"]] if args["dataset"] else None)
        if opened is None or not selected:
            return {"datasets": []}
        if not (args["force"] or args["rebuild"]):
            from hypaware.maintain.due import all_due
            from hypaware.maintain.resting import at_rest

            if not {each.name for each in selected} & set(all_due(home, config, opened.store, now, args["only"])):
                return at_rest(home, config, opened.store, selected, now, args["only"])
        if dry_run:
            from hypaware.maintain.foretold import would_do

            return would_do(home, config, opened.store, selected, args, now, output.note)
    return run_job("maintain", args)


def _datasets(home: Home, name: str | None, *, rebuild: bool) -> Sequence[Dataset]:
    """Return the selected datasets that have a table or, for a rebuild, at least data files."""
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
        raise UsageError("--compact-only, --expire-only and --rebuild cannot be combined")
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


def _finish(report: dict[str, Any], as_json: bool) -> None:
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
