"""`hyp restore`: create a home from a backup."""

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
    """Create the home (HYP_HOME, by default ~/.hyp) from the backup in DIR.

    The home must not exist yet: nothing is overwritten. The new home continues as a copy of the original, with a
    sequence range of its own. Before the next delivery, HypAware asks each destination which rows it already has, so
    that nothing is delivered twice. If a destination cannot answer, delivery to it waits for your decision.
    """
    from hypaware.home import Home
    from hypaware.maintain import contents, staging
    from hypaware.maintain import restore as restoring

    home, source = Home.from_environment(), folder.expanduser().resolve()
    staging.refuse_taken(home.root)
    found = contents.read(source)
    # Restoring destroys nothing, so no confirmation is needed without a terminal.
    if sys.stdin.isatty():
        confirm(f"This creates {home.root} from the backup of {found.home} made at {found.made_at}.", yes)
    bar = display()
    try:
        done = restoring.restore(home, source, bar.report)
    finally:
        bar.clear()
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
