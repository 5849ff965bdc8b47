"""Confirmation of destructive commands: on a terminal by a question, otherwise by `--yes`."""

from __future__ import annotations

import sys

import click

from hypaware.cli import output
from hypaware.errors import Cancelled, UsageError

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(what: str, yes: bool) -> None:
    """Ask the user to confirm. Raise Cancelled if they decline, UsageError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} No terminal to confirm on; pass --yes to proceed.", kind="not_confirmed")
    output.note(what)
    if not click.confirm("Continue?", default=False, err=True):
        raise Cancelled
