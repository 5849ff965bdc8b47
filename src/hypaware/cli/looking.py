"""Access to the state of a home for commands that only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hypaware.cli import output

if TYPE_CHECKING:
    from hypaware.home import Home
    from hypaware.opening import OpenHome


@contextmanager
def looking_into(home: Home) -> Iterator[OpenHome | None]:
    """Open the home, or give None if it has no state; never create one."""
    from hypaware.opening import open_home

    if not home.state.is_file():
        yield None
        return
    opened = open_home(home)
    try:
        if opened.rebuilt:
            output.warn(opened.rebuilt)
        yield opened
    finally:
        opened.store.close()
