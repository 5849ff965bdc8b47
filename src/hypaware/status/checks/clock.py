"""This machine's clock, against the times that the home and the servers know."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from hypaware.lake import metadata
from hypaware.status import words
from hypaware.status.checks.check import Check, failed, ok
from hypaware.status.lake import BACK_SECONDS
from hypaware.status.view import View


def against_the_home(view: View) -> Iterator[Check]:
    now = view.now.timestamp()
    ahead = {what: at for what, at in _known(view) if at > now + BACK_SECONDS}
    if not ahead:
        yield ok("clock", f"{view.now:%Y-%m-%d %H:%M:%S} UTC, and nothing in the home is later")
        return
    what, at = max(ahead.items(), key=lambda item: item[1])
    then = datetime.fromtimestamp(at, UTC)
    apart = f"it says {view.now:%Y-%m-%d %H:%M} UTC, and {what} is of {then:%Y-%m-%d %H:%M}"
    yield failed("clock", f"{apart}: nothing can be committed until then", "date -u")


def _known(view: View) -> Iterator[tuple[str, float]]:
    for entry in metadata.entries(view.home):
        try:
            snapshots = metadata.read(entry.metadata).snapshots
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield from ((f"a commit of {entry.name}", snapshot.at) for snapshot in snapshots)
    if committed := words.moment(view.memory.last_commit_at):
        yield "the last flush", committed.timestamp()
    for path in (view.home.state, view.home.mirror, view.home.config):
        if path.exists():
            yield path.name, path.stat().st_mtime
