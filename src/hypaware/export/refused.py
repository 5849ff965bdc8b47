"""List, show and drop dead letters. `replay` sends them again.

@ref delivery#refusal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hypaware.export import letters
from hypaware.export.locks import stream_locks
from hypaware.home import Home
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.dead_letters import DeadLetter

if TYPE_CHECKING:
    from hypaware.export.clearance import Clearance
    from hypaware.model.datasets import Dataset
    from hypaware.state.store import Store

ReadLake = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]
"""Runs the job `read` with these arguments. Returns its result and its bytes."""


def listed(store: Store, sink: str | None = None) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.all_letters(connection, sink)


def named(store: Store, ids: Sequence[str]) -> list[DeadLetter]:
    """Return the dead letters with these ids or unique id prefixes, each once."""
    with store.reading() as connection:
        found = [dead_letters.get(connection, each) for each in ids]
    return list({letter.id: letter for letter in found}.values())


def rows_of(store: Store, letter: DeadLetter, read_lake: ReadLake, gate: Clearance) -> list[dict[str, Any]]:
    """Return the refused rows, from the lake if the state lost its copy.

    Secrets are redacted as for delivery, because the user may show the output to others.
    """
    from hypaware.model import datasets

    with store.reading() as connection:
        body = dead_letters.payload(connection, letter.id)
    dataset = datasets.get(letter.key.dataset)
    if body is not None:
        return _shown(dataset, body, gate)
    found: list[dict[str, Any]] = []
    wanted = {"dataset": letter.key.dataset, "source": letter.key.source, "until": letter.last}
    after: int | None = letter.after
    while after is not None:
        result, page = read_lake({**wanted, "since": after, "include_legacy": False})
        found += _shown(dataset, page, gate) if page else []
        after = result["next"]
    return found


def _shown(dataset: Dataset, body: bytes, gate: Clearance) -> list[dict[str, Any]]:
    return letters.shown(dataset, gate.redact(dataset.name, letters.unpacked(body)))


def drop(home: Home, store: Store, selected: Sequence[DeadLetter]) -> None:
    """Delete dead letters without delivering them. Takes the stream locks, so that no replay of them is running."""
    if not selected:
        return
    with stream_locks(home, {letter.key for letter in selected}):
        with store.transaction() as connection:
            for letter in selected:
                dead_letters.drop(connection, letter.id)
            streams.stepped(connection)
        mirror.write(home.mirror, store)
