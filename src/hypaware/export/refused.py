"""What the user does with dead letters on this side: list, look into, drop. `replay` sends them again.

@ref delivery#refusal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hypaware.export.locks import stream_locks
from hypaware.home import Home
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.dead_letters import DeadLetter

if TYPE_CHECKING:
    from hypaware.export.clearance import Clearance
    from hypaware.model.datasets import Dataset
    from hypaware.state.store import Store

__all__ = ["DeadLetter", "drop", "listed", "named", "rows_of"]

ReadLake = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]
"""Runs the job `read` with these arguments: its answer and its bytes."""


def listed(store: Store, sink: str | None = None) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.all_letters(connection, sink)


def named(store: Store, ids: Sequence[str]) -> list[DeadLetter]:
    """By their ids, or as much of the beginning as makes them known; each once."""
    with store.reading() as connection:
        found = [dead_letters.get(connection, each) for each in ids]
    return list({letter.id: letter for letter in found}.values())


def rows_of(store: Store, letter: DeadLetter, read_lake: ReadLake, clearance: Clearance) -> list[dict[str, Any]]:
    """The rows as they were refused, from the lake where a lost state took that copy with it; without secrets, as they
    would leave: who is shown a letter may want to show it to others."""
    from hypaware.model import datasets

    with store.reading() as connection:
        body = dead_letters.payload(connection, letter.id)
    dataset = datasets.get(letter.key.dataset)
    if body is not None:
        return _shown(dataset, body, clearance)
    found: list[dict[str, Any]] = []
    wanted = {"dataset": letter.key.dataset, "source": letter.key.source, "until": letter.last}
    after: int | None = letter.after
    while after is not None:
        told, page = read_lake({**wanted, "since": after, "include_legacy": False})
        found += _shown(dataset, page, clearance) if page else []
        after = told["next"]
    return found


def _shown(dataset: Dataset, body: bytes, clearance: Clearance) -> list[dict[str, Any]]:
    from hypaware.export import letters

    return letters.shown(dataset, clearance.without_secrets(dataset.name, letters.unpacked(body)))


def drop(home: Home, store: Store, chosen: Sequence[DeadLetter]) -> None:
    """They are never delivered, and forgotten; not beside a replay of the same ones."""
    if not chosen:
        return
    with stream_locks(home, {letter.key for letter in chosen}):
        with store.transaction() as connection:
            for letter in chosen:
                dead_letters.drop(connection, letter.id)
            streams.stepped(connection)
        mirror.write(home.mirror, store)
