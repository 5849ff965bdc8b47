"""`hyp upgrade`: what an upgrade brings and changes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.errors import HypError, UsageError
from hypaware.home import Home


@click.command(
    "upgrade",
    cls=Command,
    examples=[
        "hyp upgrade --check",
        "hyp upgrade --check hypaware-0.2.0-py3-none-any.whl",
        "hyp upgrade --check --json",
    ],
)
@click.option("--check", is_flag=True, help="Show what an upgrade brings, and what it changes in this home.")
@click.argument("wheel", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
def upgrade(check: bool, wheel: Path | None) -> int:
    """Compare this installation with WHEEL, or with the newest version that pip finds, and show what would change.

    Nothing is installed, and nothing in the home changes. Without WHEEL, the command asks pip, which needs a network or
    a folder of wheels (PIP_FIND_LINKS); if pip finds no version, it exits with 1. To upgrade, use the tool that
    installed HypAware.
    """
    from hypaware import upgrade as upgrades
    from hypaware.cli.help_pages import find_pages

    if not check:
        raise UsageError("hyp does not upgrade itself: use --check, then pip install --upgrade hypaware")
    home = Home.from_environment()
    installed = upgrades.installed_release(find_pages()["changelog"].read_text(encoding="utf-8"))
    if wheel is not None:
        found = upgrades.compare(home, installed, upgrades.read_release(wheel))
    else:
        try:
            with upgrades.newest_wheel() as newest:
                found = upgrades.compare(home, installed, upgrades.read_release(newest))
        except HypError as error:
            raise HypError(
                f"HypAware {installed.version} is installed. Whether there is a newer one is unknown: {error.message}",
                kind=error.kind,
                repair="hyp upgrade --check FILE.whl",
            ) from error
    if not output.emit_document(found):
        _show(found, f"pip install --upgrade {shlex.quote(str(wheel)) if wheel else 'hypaware'}")
    return 1 if found["refused"] else 0


def _show(found: dict[str, Any], command: str) -> None:
    output.emit(
        f"installed {found['installed']}, {'in the file' if command.endswith('.whl') else 'newest'} {found['offered']}"
    )
    if found["direction"] == "same" and not found["changes"]:
        output.emit("this version is up to date")
        return
    for title, lines in (("New:", found["new"]), ("On disk:", found["changes"])):
        output.emit(f"\n{title}")
        output.emit("\n".join(f"- {line}" for line in lines) or "- nothing")
    if found["refused"]:
        output.emit(
            f"\nIt cannot open the home {found['home']}, which a newer version wrote: a downgrade is refused "
            f"(the state has {', '.join(found['refused'])})."
        )
        return
    if found["irreversible"]:
        output.emit(
            "\nThe first command changes the state. After that, older versions refuse this home; before: hyp backup DIR"
        )
    output.note(f"to {'downgrade' if found['direction'] == 'downgrade' else 'upgrade'}: {command}")
