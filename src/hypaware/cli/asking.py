"""Interactive questions, drawn on stderr. Ctrl-C, Esc or the end of the input cancels the command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hypaware.errors import Cancelled

if TYPE_CHECKING:
    from questionary import Question


def answer(question: Question) -> Any:
    """Ask the question and return the answer; raise Cancelled if the user leaves."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
    from prompt_toolkit.keys import Keys

    escape = KeyBindings()

    @escape.add(Keys.Escape, eager=True)
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    application = question.application
    own = application.key_bindings
    application.key_bindings = merge_key_bindings([own, escape] if own else [escape])
    try:
        return question.unsafe_ask()
    except (KeyboardInterrupt, EOFError):
        raise Cancelled from None


def drawn() -> dict[str, Any]:
    """Return options that draw a question on stderr, because stdout may be piped."""
    from prompt_toolkit.output import create_output

    return {"output": create_output(stdout=sys.stderr)}
