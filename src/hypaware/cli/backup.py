"""`hyp backup` and `hyp restore`: copy a home, and create one from a copy."""

from __future__ import annotations

from pathlib import Path

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.cli.jobs import run_job
from hypaware.cli.progress import display
from hypaware.errors import HypError


@click.command("backup", cls=Command, examples=["hyp backup ~/backups/hyp-monday", "hyp backup /mnt/disk/hyp --json"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def backup(folder: Path, as_json: bool) -> None:
    """Copy the whole home to DIR, as of one moment, while recording continues.

    DIR must be outside the home and empty or not exist yet. Use a new folder for each backup and delete those that you
    no longer need. `hyp restore DIR` creates a home from a backup.
    """
    from hypaware.home import Home
    from hypaware.lake import metadata
    from hypaware.maintain import backup as made
    from hypaware.maintain import staging
    from hypaware.opening import identify

    home, to = Home.from_environment(), folder.expanduser().resolve()
    staging.refuse_taken(to)
    if not home.root.is_dir():
        raise HypError(f"no home at {home.root}", kind="no_home")
    identify(home)
    bar = display()
    report = None
    if not metadata.entries(home):
        try:
            report = made.without_engine(home, to, bar.report)
        finally:
            bar.clear()
    report = report or run_job("backup", {"to": str(to)})
    if as_json:
        output.emit_json(report)
        return
    if report["datasets"]:
        output.emit_table(["dataset", "rows"], [(each["dataset"], each["rows"]) for each in report["datasets"]])
    output.emit(f"{report['files']:,} files, {report['bytes'] / 1e6:,.1f} MB copied to {report['backup']}")
