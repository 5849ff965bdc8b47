"""Interactive questions, drawn on stderr. Ctrl-C, Esc or the end of the input cancels the command.

A destructive command is confirmed on a terminal by a question, otherwise by `--yes`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from questionary import Question


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def ask(question: Question) -> Any:
    """Ask the question and return the answer; raise Cancelled if the user leaves."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
    from prompt_toolkit.keys import Keys

    bindings = KeyBindings()

    @bindings.add(Keys.Escape, eager=True)
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    application = question.application
    own = application.key_bindings
    application.key_bindings = merge_key_bindings([own, bindings] if own else [bindings])
    try:
        return question.unsafe_ask()
    except (KeyboardInterrupt, EOFError):
        raise Cancelled from None


def prompt_options() -> dict[str, Any]:
    """Return options that draw a question on stderr, because stdout may be piped."""
    from prompt_toolkit.output import create_output

    return {"output": create_output(stdout=sys.stderr)}


def confirm(what: str, yes: bool) -> None:
    """Ask the user to confirm. Raise Cancelled if they decline, UsageError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} No terminal to confirm on; pass --yes to proceed.", kind="not_confirmed")
    output.note(what)
    if not click.confirm("Continue?", default=False, err=True):
        raise Cancelled
