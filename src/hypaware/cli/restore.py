"""`hyp restore`: a home from a backup."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypaware.cli import output
from hypaware.cli.confirm import confirm, yes_option
from hypaware.cli.group import Command, json_option
from hypaware.cli.progress import display


@click.command("restore", cls=Command, examples=["hyp restore ~/backups/hyp-monday", "hyp restore /mnt/disk/hyp --yes"])
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@yes_option
@json_option
def restore(folder: Path, yes: bool, as_json: bool) -> None:
    """Make the home (HYP_HOME, else ~/.hyp) from the backup in DIR. There must be none: nothing is overwritten.

    The home goes on as a copy of the one that was backed up, with sequences of its own. Where a destination can be
    asked, it is asked what it has, so that nothing is delivered twice; where it cannot, delivery waits for your word.
    """
    from hypaware.home import Home
    from hypaware.maintain import contents, staging
    from hypaware.maintain import restore as restoring

    home, source = Home.from_environment(), folder.expanduser().resolve()
    staging.refuse_taken(home.root)
    found = contents.read(source)
    # Nothing is lost by it, so only who sits there is asked.
    if sys.stdin.isatty():
        confirm(f"{home.root} is made from the backup of {found.home} of {found.made_at}.", yes)
    shown = display()
    try:
        done = restoring.restore(home, source, shown.report)
    finally:
        shown.clear()
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
    if as_json:
        output.emit_json(report)
    else:
        output.emit_fields(report)
