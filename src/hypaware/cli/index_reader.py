"""Open the index for a reading command, and explain an empty answer. This module does not import click."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hypaware.cli import output
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index


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


def note_nothing_recorded() -> None:
    """Name the command that imports history. For an answer without filters that has nothing."""
    output.note("to import the session history on this machine: hyp backfill")
