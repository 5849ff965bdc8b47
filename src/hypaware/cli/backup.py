"""`hyp backup` and `hyp restore`: copy a home, and create one from a copy.

`hyp restore`: create a home from a backup.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import run_job
from hypaware.cli.progress import open_progress
from hypaware.cli.prompts import confirm, yes_option
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.text import format_size


@click.command("backup", cls=Command, examples=["hyp backup ~/backups/hyp-monday", "hyp backup /mnt/disk/hyp --json"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def backup(folder: Path, as_json: bool) -> None:
    """Copy the whole home to DIR, as of one moment, while recording continues.

    DIR must be outside the home and empty or not exist yet. Use a new folder for each backup and delete those that you
    no longer need. `hyp restore DIR` creates a home from a backup.
    """
    from hypaware.iceberg import metadata
    from hypaware.maintain import backup_folder
    from hypaware.maintain.backup import backup_without_engine
    from hypaware.state.home_opener import read_identity

    home, to = Home.from_environment(), folder.expanduser().resolve()
    backup_folder.refuse_existing(to)
    if not home.root.is_dir():
        raise HypError(f"no home at {home.root}", kind="no_home")
    read_identity(home)
    report = None
    if not metadata.list_tables(home):
        with open_progress() as bar:
            report = backup_without_engine(home, to, bar.report)
    report = report or run_job("backup", {"to": str(to)})
    if as_json:
        output.emit_json(report)
        return
    if report["datasets"]:
        output.emit_table(["dataset", "rows"], [(each["dataset"], each["rows"]) for each in report["datasets"]])
    output.emit(f"{report['files']:,} files, {format_size(report['bytes'])} copied to {report['backup']}")


@click.command("restore", cls=Command, examples=["hyp restore ~/backups/hyp-monday", "hyp restore /mnt/disk/hyp --yes"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@yes_option
@json_option
def restore(folder: Path, yes: bool, as_json: bool) -> None:
    """Create the home (HYP_HOME, by default ~/.hyp) from the backup in DIR.

    The home must not exist yet: nothing is overwritten. The new home continues as a copy of the original, with a
    sequence range of its own. Before the next delivery, HypAware asks each destination which rows it already has, so
    that nothing is delivered twice. If a destination cannot answer, delivery to it waits for your decision.
    """
    from hypaware.maintain import backup_folder
    from hypaware.maintain import restore as restoring

    home, source = Home.from_environment(), folder.expanduser().resolve()
    backup_folder.refuse_existing(home.root)
    found = backup_folder.read_manifest(source)
    # Restoring destroys nothing, so no confirmation is needed without a terminal.
    if sys.stdin.isatty():
        confirm(f"This creates {home.root} from the backup of {found.home} made at {found.made_at}.", yes)
    with open_progress() as bar:
        done = restoring.restore_home(home, source, bar.report)
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
    output.emit_report(report, as_json)
