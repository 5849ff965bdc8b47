"""`hyp export adopt` and `hyp export resend`: the user's decision about a sink whose destination changed."""

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
    """Continue delivering to the new destination of SINK, without sending delivered rows again.

    If the delivery record was lost, every row that existed at that moment is treated as delivered.
    """
    from hypaware.export import binding

    what = f"{sink} continues at the destination in the config. Rows that it has already delivered are not sent again."
    _rebind(binding.adopt, sink, what, yes, as_json)


@click.command("resend", cls=Command, examples=["hyp export resend team", "hyp export resend team --yes"])
@click.argument("sink")
@yes_option
@json_option
def resend(sink: str, yes: bool, as_json: bool) -> None:
    """Send every row of the lake to the new destination of SINK, except rows that it already has."""
    from hypaware.export import binding

    what = f"{sink} sends every row of the lake to the destination in the config, and drops its dead letters."
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
            ["dataset", "source", "delivered up to", "old destination", "new destination"],
            [(each.key.dataset, each.key.source, each.watermark, each.previous_address, each.address) for each in bound],
        )
        output.note(f"next: hyp export {sink}")
    else:
        output.emit(f"{sink} has not delivered anything yet; nothing to change")
