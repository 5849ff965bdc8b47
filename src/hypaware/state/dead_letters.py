"""Dead letters: rows that a sink refused permanently, kept with the reason until the user replays or drops them.

The id of a dead letter is the id of the refused chunk, so that a replay sends the same chunk. If another letter already
has that id, `-<sink>` is appended. The payload is the rows as an Arrow stream. A letter without a payload (the state
was rebuilt from its mirror) is replayed from the lake.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hypaware.errors import HypError
from hypaware.state.streams import OF_STREAM, StreamKey, advance_delivery_step

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_LISTED = "id, sink, dataset, source, incarnation, seq_after AS after, seq_last AS last, row_count AS rows, reason, at"


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
        facts = {name: getattr(self, name) for name in ("after", "last", "rows", "reason", "at")}
        return {"id": self.id, **asdict(self.key), **facts}


def list_letters(connection: Connection, sink: str | None = None) -> list[DeadLetter]:
    sql = f"SELECT {_LISTED} FROM dead_letters WHERE sink = coalesce(?, sink) ORDER BY at, seq_after"
    found = []
    for row in connection.rows(sql, (sink,)):
        key = StreamKey(row.pop("sink"), row.pop("dataset"), row.pop("source"))
        found.append(DeadLetter(key=key, **row))
    return found


def list_stream_letters(connection: Connection, key: StreamKey) -> list[DeadLetter]:
    return [letter for letter in list_letters(connection, key.sink) if letter.key == key]


def find_letter(connection: Connection, id_or_prefix: str) -> DeadLetter:
    """Return the letter with this id or, if there is only one, with an id that begins with it."""
    found = [letter for letter in list_letters(connection) if letter.id.startswith(id_or_prefix)]
    if not found or not id_or_prefix:
        message, repair = f"unknown dead letter {id_or_prefix!r}", "hyp export dead-letters list"
        raise HypError(message, kind="unknown_dead_letter", repair=repair)
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
    values = {name: getattr(letter, name) for name in ("id", "incarnation", "reason", "at")}
    values |= {"seq_after": letter.after, "seq_last": letter.last, "row_count": letter.rows, "payload": payload}
    connection.insert("dead_letters", {**asdict(letter.key), **values})
    advance_delivery_step(connection)


def drop_letter(connection: Connection, letter_id: str) -> None:
    connection.execute("DELETE FROM dead_letters WHERE id = ?", (letter_id,))


def drop_stream_letters(connection: Connection, key: StreamKey) -> None:
    connection.execute(f"DELETE FROM dead_letters WHERE {OF_STREAM}", asdict(key))
