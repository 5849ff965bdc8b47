"""Dead letters: rows that a sink refused permanently, kept with the reason until the user replays or drops them.

The id of a dead letter is the id of the refused chunk, so that a replay sends the same chunk. If another letter already
has that id, `-<sink>` is appended. The payload is the rows as an Arrow stream. A letter without a payload (the state
was rebuilt from its mirror) is replayed from the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hypaware.errors import HypError
from hypaware.state.streams import OF_STREAM, StreamKey, advance_delivery_step, key_of

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_LISTED = "id, sink, dataset, source, incarnation, seq_after, seq_last, row_count, reason, at"


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
            **asdict(self.key),
            "after": self.after,
            "last": self.last,
            "rows": self.rows,
            "reason": self.reason,
            "at": self.at,
        }


def list_letters(connection: Connection, sink: str | None = None) -> list[DeadLetter]:
    sql = f"SELECT {_LISTED} FROM dead_letters WHERE sink = coalesce(?, sink) ORDER BY at, seq_after"
    return [_to_letter(row) for row in connection.rows(sql, (sink,))]


def list_stream_letters(connection: Connection, key: StreamKey) -> list[DeadLetter]:
    return [letter for letter in list_letters(connection, key.sink) if letter.key == key]


def find_letter(connection: Connection, id_or_prefix: str) -> DeadLetter:
    """Return the letter with this id or, if there is only one, with an id that begins with it."""
    found = [letter for letter in list_letters(connection) if letter.id.startswith(id_or_prefix)]
    if not found or not id_or_prefix:
        raise HypError(
            f"unknown dead letter {id_or_prefix!r}",
            kind="unknown_dead_letter",
            repair="hyp export dead-letters list",
        )
    if exact := [letter for letter in found if letter.id == id_or_prefix]:
        return exact[0]
    if len(found) > 1:
        raise HypError(f"{len(found)} dead letters begin with {id_or_prefix!r}; give a longer id", kind="ambiguous")
    return found[0]


def load_payload(connection: Connection, letter_id: str) -> bytes | None:
    payload: bytes | None = connection.value("SELECT payload FROM dead_letters WHERE id = ?", (letter_id,))
    return payload


def add_letter(connection: Connection, letter: DeadLetter, payload: bytes | None) -> None:
    # A renamed sink keeps the ids of its chunks. A new sink under the old name can be refused the same rows.
    owner = next((each.key for each in list_letters(connection) if each.id == letter.id), letter.key)
    if owner != letter.key:
        letter = replace(letter, id=f"{letter.id}-{letter.key.sink}")
    drop_letter(connection, letter.id)
    connection.insert(
        "dead_letters",
        {
            "id": letter.id,
            **asdict(letter.key),
            "incarnation": letter.incarnation,
            "seq_after": letter.after,
            "seq_last": letter.last,
            "row_count": letter.rows,
            "reason": letter.reason,
            "at": letter.at,
            "payload": payload,
        },
    )
    advance_delivery_step(connection)


def drop_letter(connection: Connection, letter_id: str) -> None:
    connection.execute("DELETE FROM dead_letters WHERE id = ?", (letter_id,))


def drop_stream_letters(connection: Connection, key: StreamKey) -> None:
    connection.execute(f"DELETE FROM dead_letters WHERE {OF_STREAM}", asdict(key))


def _to_letter(row: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(
        row["id"],
        key_of(row),
        row["incarnation"],
        row["seq_after"],
        row["seq_last"],
        row["row_count"],
        row["reason"],
        row["at"],
    )
