"""Check this machine's clock against the times recorded in the home."""

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
    ahead = {what: at for what, at in _recorded_times(view) if at > now + BACK_SECONDS}
    if not ahead:
        yield ok("clock", f"{view.now:%Y-%m-%d %H:%M:%S} UTC, and nothing in the home is later")
        return
    what, at = max(ahead.items(), key=lambda item: item[1])
    then = datetime.fromtimestamp(at, UTC)
    times = f"the clock shows {view.now:%Y-%m-%d %H:%M} UTC, but {what} is from {then:%Y-%m-%d %H:%M}"
    yield failed("clock", f"{times}: nothing can be committed until then", "date -u")


def _recorded_times(view: View) -> Iterator[tuple[str, float]]:
    for entry in metadata.entries(view.home):
        try:
            snapshots = metadata.read(entry.metadata).snapshots
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield from ((f"a commit of {entry.name}", snapshot.at) for snapshot in snapshots)
    if committed := words.moment(view.state.last_commit_at):
        yield "the last flush", committed.timestamp()
    for path in (view.home.state, view.home.mirror, view.home.config):
        if path.exists():
            yield path.name, path.stat().st_mtime
