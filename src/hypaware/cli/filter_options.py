"""What the reading commands share: the options of their filters, and opening the index."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index

_FILTERS = ("project", "client", "model", "since", "until", "machine", "timezone")
_OPTIONS = (
    click.option("--project", metavar="P", help="Only this project: a path, or the last folder of one."),
    click.option("--client", metavar="C", help="Only this client, such as claude or codex."),
    click.option("--model", metavar="M", help="Only models whose name begins like this."),
    click.option("--since", metavar="DATE", help="Nothing older: 2026-11-15, 2026-11-15T08:00Z, 7d, 12h."),
    click.option("--until", metavar="DATE", help="Nothing newer; a day includes its end."),
    click.option("--machine", metavar="ID", help="Only the machine with this gateway id."),
    click.option("--timezone", metavar="ZONE", help="Zone of days and times.  [default: your own]"),
)

limit_option = click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Show at most this many; 0 means no limit."
)


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the filters. The command gets them as one argument, `filters`."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        from hypaware.index.filters import make_filters

        options = {name: given.pop(name) for name in _FILTERS}
        return function(*args, filters=make_filters(**options), **given)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@contextmanager
def open_for_reading() -> Iterator[Index]:
    """Open the index of the home. Raise NotReady if there is no home.

    The garbage collector is off in this context: it would look at a long result again and again while it grows.
    """
    from hypaware.index.store import open_index

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with open_index(Home.from_environment(), note=output.note) as index:
            yield index
    finally:
        if was_enabled:
            gc.enable()


def note_no_match(index: Index, filters: Filters) -> None:
    """If nothing matches because of one filter, say which one and list what exists."""
    from hypaware.index.filters import explain_no_match

    if reason := explain_no_match(index.connection, filters):
        output.note(reason)
