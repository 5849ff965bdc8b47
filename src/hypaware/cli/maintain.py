"""`hyp maintain`, `hyp backup` and `hyp restore`: maintain the lake now, copy a home, and create one from a copy."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option, parse_duration, yes_option
from hypaware.cli.jobs import open_existing_home, open_progress, run_job
from hypaware.config import Config
from hypaware.config import load as load_config
from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.text import format_size

# Partitions listed by a dry run; --json has all of them.
_MAX_SHOWN_PARTITIONS = 20


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
@click.option("--force", is_flag=True, help="Compact the newest files too, and expire all old snapshots at once.")
@click.option("--compact-only", is_flag=True, help="Merge small files into larger ones, and do nothing else.")
@click.option("--expire-only", is_flag=True, help="Drop expired days, free their disk space, and do nothing else.")
@click.option("--rebuild", is_flag=True, help="Rewrite the whole table, to repair a damaged one.")
@click.option(
    "--readmit",
    is_flag=True,
    help="Let hyp backfill restore days that retention dropped although the configured period keeps them.",
)
@click.option("--budget", metavar="DURATION", help="Start no new work after this time; the next run does the rest.")
@json_option
def maintain(
    dataset: str | None,
    dry_run: bool,
    force: bool,
    compact_only: bool,
    expire_only: bool,
    rebuild: bool,
    readmit: bool,
    budget: str | None,
) -> None:
    """Compact the lake, apply retention and expire old snapshots, of DATASET or of all datasets.

    The daemon does this automatically. It is safe to run or to interrupt at any time. Days that are older than the
    retention are dropped only after every configured sink has received them. If nothing is due, no engine is started.
    """

    if sum((compact_only, expire_only, rebuild, readmit)) > 1:
        raise UsageError("--compact-only, --expire-only, --rebuild and --readmit cannot be combined")
    args = {
        "dataset": dataset,
        "force": force,
        "only": "compact" if compact_only else "expire" if expire_only else None,
        "rebuild": rebuild,
        "readmit": readmit,
        "budget": None if budget is None else parse_duration("--budget", budget),
    }
    home = Home.from_environment()
    config = load_config(home)
    report = _run(home, config, args, dry_run, datetime.now(UTC))
    if not output.wants_json():
        show_maintenance(report, dry_run=dry_run)
    if failed := [each for each in report["datasets"] if each["errors"]]:
        raise output.PartialFailure(
            "; ".join(f"{each['dataset']}: {error}" for each in failed for error in each["errors"]),
            report,
            kind="maintenance_failed",
            repair="hyp verify",
        )
    output.emit_document(report)


def _run(home: Home, config: Config, args: dict[str, Any], dry_run: bool, now: datetime) -> dict[str, Any]:
    from hypaware.iceberg import metadata
    from hypaware.lake import health
    from hypaware.model import datasets

    rebuild, only = args["rebuild"], args["only"]
    named = [datasets.get(args["dataset"])] if args["dataset"] else datasets.list_all()
    present = {entry.name for entry in metadata.list_tables(home)}
    selected = [each for each in named if each.name in present]
    if rebuild:
        # For a rebuild, data files are enough.
        selected = [each for each in named if each.name in present or metadata.table_folders(home, each.name)]
    with open_existing_home(home) as opened:
        if not rebuild and args["dataset"]:
            # Without a name, the report has the errors of damaged tables, and the others are maintained.
            health.check_tables(home, [args["dataset"]])
        if opened is None or not selected:
            return {"datasets": []}
        if not (args["force"] or rebuild or args["readmit"]):
            from hypaware.maintain.task import find_due_datasets, idle_report

            if not {each.name for each in selected} & set(find_due_datasets(home, config, opened.store, now, only)):
                return idle_report(home, config, opened.store, selected, now, only)
        if dry_run:
            from hypaware.maintain.jobs import dry_run_report

            return dry_run_report(home, config, opened.store, selected, args, now, output.note)
    return run_job("maintain", args)


def show_maintenance(report: Mapping[str, Any], *, dry_run: bool) -> None:
    if not report["datasets"]:
        output.emit("the lake is empty")
        return
    dropped, expired = ("would drop", "would expire") if dry_run else ("rows dropped", "snapshots expired")
    columns = ["dataset", "files", "MB", dropped, "rows held", expired]
    rows = []
    for each in report["datasets"]:
        files = [f"{each[name]:,}" for name in ("files_before", "files_after")]
        sizes = [f"{each[name] / 1e6:,.1f}" for name in ("bytes_before", "bytes_after")]
        changes = [" → ".join(dict.fromkeys(pair)) for pair in (files, sizes)]
        counts = (each[name] for name in ("rows_expired", "rows_held", "snapshots_expired"))
        rows.append((each["dataset"], *changes, *counts))
    output.emit_table(columns, rows)
    for each in report["datasets"]:
        output.emit(f"{each['dataset']}: {each['reason']}")
        if dry_run:
            _show_partitions(each)
    for each in report["datasets"]:
        _show_held(each)
        if each["rows_without_time"]:
            output.note(f"{each['dataset']}: {each['rows_without_time']:,} rows have no timestamp and are kept")
        for path in each["set_aside"]:
            output.warn(f"{each['dataset']}: unreadable file moved to {path}")


def _show_partitions(each: Mapping[str, Any]) -> None:
    """Print the affected partitions with their current size; the size after a rewrite is not known before."""
    parts = [("dropped", part) for part in each["dropped"]] + [("rewritten", part) for part in each["rewritten"]]
    if not parts:
        return
    output.emit()
    shown = [
        (part["source"], part["day"], part["files"], f"{part['bytes'] / 1e6:,.1f}", f"would be {what}")
        for what, part in parts[:_MAX_SHOWN_PARTITIONS]
    ]
    output.emit_table(["source", "day", "files", "MB", ""], shown)
    if more := len(parts) - len(shown):
        output.emit(f"and {more:,} more (use --json to see all)")
    output.emit()


def _show_held(each: Mapping[str, Any]) -> None:
    if not each["held"]:
        return
    groups: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    by_sink: defaultdict[str, int] = defaultdict(int)
    for part in each["held"]:
        groups[part["source"], part["since"], part["until"], tuple(part["sinks"])].append(part)
        for sink in part["sinks"]:
            by_sink[sink] += part["rows"]
    output.emit()
    output.emit(f"{each['dataset']}: expired days that are held until a sink has received them")
    columns = ["source", "days", "from", "to", "rows", "held for", "held since", "dropped on"]
    rows = []
    for (source, since, until, sinks), parts in sorted(groups.items()):
        days = sorted({part["day"] for part in parts})
        count = sum(part["rows"] for part in parts)
        rows.append((source, len(days), days[0], days[-1], count, ", ".join(sinks), since, until))
    output.emit_table(columns, rows)
    for sink, count in sorted(by_sink.items()):
        output.emit(f"{count:,} rows are held for {sink}; to deliver them: hyp export {sink}")
    output.emit("to see why they are not delivered: hyp export status")


@click.command("backup", cls=Command, examples=["hyp backup ~/backups/hyp-monday", "hyp backup /mnt/disk/hyp --json"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def backup(folder: Path) -> None:
    """Copy the whole home to DIR, as of one moment, while recording continues.

    DIR must be outside the home and empty or not exist yet. Use a new folder for each backup and delete those that you
    no longer need. `hyp restore DIR` creates a home from a backup.

    If the home has a shared lake, only what this machine alone has is copied: config, secrets, spool. Back up the
    database and the bucket with their own tools.

    A damaged table does not prevent the backup of the others: its files are copied as they are, and the command ends
    with exit code 1 and names the table.
    """
    from hypaware.config.shared_lake import find_shared_lake
    from hypaware.iceberg import metadata
    from hypaware.maintain import backup_folder
    from hypaware.maintain.backup import backup_machine, backup_without_engine
    from hypaware.state.home_opener import read_identity

    home, to = Home.from_environment(), folder.expanduser().resolve()
    backup_folder.refuse_existing(to)
    read_identity(home, make=False)
    report = None
    if find_shared_lake(home) is not None:
        with open_progress() as bar:
            report = backup_machine(home, to, bar.report)
        output.note(f"not copied, back them up with their own tools: {', '.join(report['not_copied'])}")
    elif not metadata.list_tables(home):
        with open_progress() as bar:
            report = backup_without_engine(home, to, bar.report)
    report = report or run_job("backup", {"to": str(to)})
    if not output.wants_json():
        if report["datasets"]:
            output.emit_table(["dataset", "rows"], [(each["dataset"], each["rows"]) for each in report["datasets"]])
        output.emit(f"{report['files']:,} files, {format_size(report['bytes'])} copied to {report['backup']}")
    if damaged := report["damaged"]:
        reasons = "; ".join(each["message"] for each in damaged)
        raise output.PartialFailure(
            f"the backup has the remaining files of {', '.join(each['dataset'] for each in damaged)}, and all of the "
            f"rest of the home: {reasons}. Keep your earlier backups, and make a new one after the repair",
            report,
            kind="backup_incomplete",
            repair=[command for each in damaged for command in each["repair"]],
        )
    output.emit_document(report)


@click.command("restore", cls=Command, examples=["hyp restore ~/backups/hyp-monday", "hyp restore /mnt/disk/hyp --yes"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@yes_option
@json_option
def restore(folder: Path, yes: bool) -> None:
    """Create the home (HYP_HOME, by default ~/.hyp) from the backup in DIR.

    The home must not exist yet: nothing is overwritten. The new home continues as a copy of the original, with a
    sequence range of its own. Before the next delivery, HypAware asks each destination which rows it already has, so
    that nothing is delivered twice. If a destination cannot answer, delivery to it waits for your decision.
    """
    from hypaware.maintain import backup_folder
    from hypaware.maintain.backup import restore_home

    home, source = Home.from_environment(), folder.expanduser().resolve()
    backup_folder.refuse_existing(home.root)
    found = backup_folder.read_manifest(source)
    # Restoring destroys nothing, so no confirmation is needed without a terminal.
    if sys.stdin.isatty():
        output.confirm(f"This creates {home.root} from the backup of {found.home} made at {found.made_at}.", yes)
    with open_progress() as bar:
        done = restore_home(home, source, bar.report)
    report = {
        "home": str(home.root),
        "backup": str(source),
        "made_at": found.made_at,
        "gateway_id": done.identity.gateway_id,
        "incarnation": done.identity.incarnation,
        "next_seq": done.next_seq,
        "files": len(found.files),
        "bytes": found.bytes,
    }
    output.emit_result(report)
