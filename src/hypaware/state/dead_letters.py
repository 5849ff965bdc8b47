"""Dead letters: rows that a sink refused permanently, kept with the reason until the user replays or drops them.

The id of a dead letter is the id of the refused chunk, so that a replay sends the same chunk. If another letter already
has that id, `-<sink>` is appended. The payload is the rows as an Arrow stream. A letter without a payload (the state
was rebuilt from its mirror) is replayed from the lake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from hypaware.errors import HypError
from hypaware.state import streams, tables
from hypaware.state.stream_key import StreamKey

_dead = tables.dead_letters
_LISTED = [column for column in _dead.c if column.name != "payload"]


@dataclass(frozen=True)
class DeadLetter:
    id: str
    key: StreamKey
    incarnation: str
    after: int
    last: int
    rows: int
    reason: str
    at: str

    @property
    def chunk_id(self) -> str:
        return self.id.partition("-")[0]

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "sink": self.key.sink,
            "dataset": self.key.dataset,
            "source": self.key.source,
            "after": self.after,
            "last": self.last,
            "rows": self.rows,
            "reason": self.reason,
            "at": self.at,
        }


def all_letters(connection: Connection, sink: str | None = None) -> list[DeadLetter]:
    chosen = select(*_LISTED).order_by(_dead.c.at, _dead.c.seq_after)
    if sink is not None:
        chosen = chosen.where(_dead.c.sink == sink)
    return [_letter(row) for row in connection.execute(chosen)]


def of_stream(connection: Connection, key: StreamKey) -> list[DeadLetter]:
    return [letter for letter in all_letters(connection, key.sink) if letter.key == key]


def get(connection: Connection, id_or_prefix: str) -> DeadLetter:
    found = [letter for letter in all_letters(connection) if letter.id.startswith(id_or_prefix)]
    if not found or not id_or_prefix:
        raise HypError(
            f"there is no dead letter {id_or_prefix!r}",
            kind="unknown_dead_letter",
            repair="hyp export dead-letters list",
        )
    if exact := [letter for letter in found if letter.id == id_or_prefix]:
        return exact[0]
    if len(found) > 1:
        raise HypError(f"{len(found)} dead letters begin with {id_or_prefix!r}; give a longer id", kind="ambiguous")
    return found[0]


def payload(connection: Connection, letter_id: str) -> bytes | None:
    found: bytes | None = connection.execute(select(_dead.c.payload).where(_dead.c.id == letter_id)).scalar()
    return found


def bury(connection: Connection, letter: DeadLetter, body: bytes | None) -> None:
    # A renamed sink keeps the ids of its chunks. A new sink under the old name can be refused the same rows.
    owner = next((each.key for each in all_letters(connection) if each.id == letter.id), letter.key)
    if owner != letter.key:
        letter = replace(letter, id=f"{letter.id}-{letter.key.sink}")
    drop(connection, letter.id)
    connection.execute(
        insert(_dead).values(
            id=letter.id,
            sink=letter.key.sink,
            dataset=letter.key.dataset,
            source=letter.key.source,
            incarnation=letter.incarnation,
            seq_after=letter.after,
            seq_last=letter.last,
            row_count=letter.rows,
            reason=letter.reason,
            at=letter.at,
            payload=body,
        )
    )
    streams.stepped(connection)


def drop(connection: Connection, letter_id: str) -> None:
    connection.execute(delete(_dead).where(_dead.c.id == letter_id))


def drop_of(connection: Connection, key: StreamKey) -> None:
    connection.execute(delete(_dead).where(streams.of(_dead, key)))


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        row.id,
        StreamKey(row.sink, row.dataset, row.source),
        row.incarnation,
        row.seq_after,
        row.seq_last,
        row.row_count,
        row.reason,
        row.at,
    )
