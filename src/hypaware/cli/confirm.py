"""The question before something that cannot be taken back: asked on a terminal, answered by `--yes` without one."""

from __future__ import annotations

import sys

import click

from hypaware.cli import output
from hypaware.errors import Cancelled, UsageError

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(what: str, yes: bool) -> None:
    """Raises Cancelled on a no, UsageError where there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} Nobody is there to be asked: add --yes if that is meant.", kind="not_confirmed")
    output.note(what)
    if not click.confirm("Go on?", default=False, err=True):
        raise Cancelled
