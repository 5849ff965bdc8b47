"""`hyp export adopt` and `hyp export resend`: the user's word on a sink that points elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.confirm import confirm, yes_option
from hypaware.cli.group import Command, json_option

if TYPE_CHECKING:
    from hypaware.export.binding import Bound


@click.command("adopt", cls=Command, examples=["hyp export adopt team", "hyp export adopt team --yes"])
@click.argument("sink")
@yes_option
@json_option
def adopt(sink: str, yes: bool, as_json: bool) -> None:
    """Go on from here: SINK points elsewhere now, and what was delivered before is not sent again.

    Also where nobody knows any more what was delivered: all that was there when the memory of it was lost then counts
    as delivered.
    """
    from hypaware.export import binding

    what = f"What {sink} has not delivered yet goes to where the config points now; what it has delivered stays behind."
    _rebind(binding.adopt, sink, what, yes, as_json)


@click.command("resend", cls=Command, examples=["hyp export resend team", "hyp export resend team --yes"])
@click.argument("sink")
@yes_option
@json_option
def resend(sink: str, yes: bool, as_json: bool) -> None:
    """Send all of it: where SINK points now gets every row of the lake, but those that it says it has."""
    from hypaware.export import binding

    what = f"Every row of the lake goes to where {sink} points now; its dead letters are dropped, being among them."
    _rebind(binding.resend, sink, what, yes, as_json)


def _rebind(rebind: Callable[..., list[Bound]], sink: str, what: str, yes: bool, as_json: bool) -> None:
    from hypaware import config as configuration
    from hypaware.export.configured import chosen
    from hypaware.home import Home
    from hypaware.opening import open_home

    home = Home.from_environment()
    config = configuration.load(home)
    chosen(config, [sink])
    confirm(what, yes)
    opened = open_home(home)
    try:
        bound = rebind(home, config, opened.store, sink)
    finally:
        opened.store.close()
    if as_json:
        output.emit_json({"sink": sink, "streams": [each.as_json() for each in bound]})
    elif bound:
        output.emit_table(
            ["dataset", "source", "delivered up to", "was at", "is at"],
            [(each.key.dataset, each.key.source, each.watermark, each.was, each.address) for each in bound],
        )
        output.note(f"next: hyp export {sink}")
    else:
        output.emit(f"{sink} has delivered nothing yet, so there is nothing to change")
