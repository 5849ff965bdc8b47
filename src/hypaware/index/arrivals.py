"""Parts as they arrive: what was recorded since the last look, in all sessions or in one.

Rows are read from the index, which also holds those of the spool, so a part arrives when its producer has written it. A
row that moves from the spool to the lake gets another number, and a live row that is settled gets the id of its native
row. Neither is new: the first is known by its message and index, the second by its content and its time.

An index that was built again gives other numbers to sessions and names. So everything that is remembered is known by
ids, not by numbers.

Rows that come into the lake without having been seen in the spool are those of an import, or were flushed between two
looks. They are new only if they are not older than `_LATE`: an import of old history is not what happens now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index.filters import Filters, filter_rows, filter_sessions, to_moment
from hypaware.index.messages import Message, MessageOutline, MessageReader
from hypaware.index.prices import load_prices
from hypaware.index.schema import DATASET, SPOOLED
from hypaware.index.sessions import session_document

if TYPE_CHECKING:
    from hypaware.home import Home
    from hypaware.index.store import Index

_LATE = timedelta(minutes=10)
_MAX_REMEMBERED = 200_000
_NEWEST_SESSIONS = 8
_RECENT = 4
"""How many messages are read for each requested part, because a message can have several."""
Signature = tuple[tuple[str, int, int], ...]
SessionKey = tuple[str, str | None]
"""Session id and machine, which are the same in every index."""


class Arrival(NamedTuple):
    session: dict[str, Any]
    """The document of the session at the time when its first part arrived."""
    message: Message
    """The message with its new parts only."""


class Arrivals:
    def __init__(self, index: Index, *, session: int | None = None, filters: Filters | None = None) -> None:
        self._index, self._session, self._filters = index, session, filters or Filters()
        self._use_numbers()
        self._session_key = None if session is None else self._find_key(session)
        self._not_before = to_moment(datetime.now(UTC) - _LATE)
        self._known: dict[tuple[SessionKey, int, int], None] = {}
        self._contents: dict[bytes, int] = {}
        # Something may have been written since the index was opened, so the first poll looks at it again.
        self._signature: Signature = ()
        self._last_seq = 0
        self._spooled: set[tuple[int, int]] = set()
        self._last_seq = self._find_last_seq()
        self._take_new_parts()

    def read_last(self, count: int) -> list[Arrival]:
        """Return the last parts that are recorded already."""
        sessions = [self._session] if self._session is not None else self._find_newest_sessions()
        query = "SELECT seq FROM parts WHERE session IN (SELECT value FROM json_each(?)) ORDER BY at DESC LIMIT ?"
        newest = self._index.connection.execute(query, (json.dumps(sessions), count * _RECENT))
        found = self._list_messages([seq for (seq,) in newest])
        shown: list[MessageOutline] = []
        parts = 0
        while found and parts < count:
            message = found.pop()
            seqs = message.seqs[-(count - parts) :]
            parts += len(seqs)
            shown.insert(0, message._replace(seqs=seqs))
        return list(self._read(shown))

    def poll(self, *, again: bool = False) -> list[Arrival]:
        """Return the parts that have arrived. If no file has changed, this costs a few system calls.

        With `again`, look into the index in any case: a process that does not wait for it to be brought up to date may
        have seen the change of a file before its rows.
        """
        signature = take_signature(self._index.home)
        if signature == self._signature and not again:
            return []
        self._signature = signature
        self._index.refresh()
        if self._index.id != self._index_id:
            if self._session_key is not None:
                if (found := self._find_number(self._session_key)) is None:
                    # The new index does not have the session yet.
                    self._signature = ()
                    return []
                self._session = found
            self._use_numbers()
        return list(self._read(self._list_messages(self._take_new_parts())))

    def _use_numbers(self) -> None:
        """Begin to use the numbers of this index, and forget those of another."""
        self._index_id = self._index.id
        self._reader = MessageReader(self._index, load_prices(self._index.home))
        self._documents: dict[int, dict[str, Any]] = {}
        self._keys: dict[int, SessionKey] = {}

    def _find_key(self, session: int) -> SessionKey:
        if session not in self._keys:
            query = "SELECT s.session_id, n.name FROM sessions s LEFT JOIN names n ON n.id = s.machine WHERE s.id = ?"
            session_id, machine = self._index.connection.execute(query, (session,)).fetchone()
            self._keys[session] = session_id, machine
        return self._keys[session]

    def _find_number(self, key: SessionKey) -> int | None:
        query = """
            SELECT s.id FROM sessions s LEFT JOIN names n ON n.id = s.machine
            WHERE s.session_id = ? AND n.name IS ?"""
        found = self._index.connection.execute(query, key).fetchone()
        return None if found is None else int(found[0])

    def _find_last_seq(self) -> int:
        query = "SELECT max(seq) FROM parts WHERE seq < ?"
        return int(self._index.connection.execute(query, (SPOOLED,)).fetchone()[0] or 0)

    def _find_newest_sessions(self) -> list[int]:
        condition, values = filter_sessions(self._index.connection, self._filters)
        query = f"SELECT s.id FROM sessions s WHERE {condition} ORDER BY s.ended_at DESC LIMIT {_NEWEST_SESSIONS}"
        return [session for (session,) in self._index.connection.execute(query, values)]

    def _take_new_parts(self) -> list[int]:
        """Return the sequences of the parts that were not there at the last look."""
        connection = self._index.connection
        # The number of a row of the spool is used again when its segment is gone.
        query = "SELECT seq, hash FROM parts WHERE seq > ?"
        found = [(seq, hash_) for seq, hash_ in connection.execute(query, (self._last_seq,))]
        added = [seq for seq, hash_ in found if (seq, hash_) not in self._spooled]
        self._spooled = {(seq, hash_) for seq, hash_ in found if seq >= SPOOLED}
        self._last_seq = max((seq for seq, _ in found if seq < SPOOLED), default=self._last_seq)
        query = """
            SELECT seq, at, session, message, part_index FROM parts
            WHERE seq IN (SELECT value FROM json_each(?)) AND session = ifnull(?, session)"""
        new = []
        for seq, at, session, message, part_index in connection.execute(query, (json.dumps(added), self._session)):
            part = self._find_key(session), message, part_index
            if part not in self._known and (seq >= SPOOLED or at >= self._not_before):
                new.append(seq)
            self._known[part] = None
        while len(self._known) > _MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        return new

    def _list_messages(self, seqs: list[int]) -> list[MessageOutline]:
        filtered, values = filter_rows(self._index.connection, self._filters)
        condition = f"p.seq IN (SELECT value FROM json_each(:seqs)) AND {filtered}"
        given = {"seqs": json.dumps(seqs), **values}
        return self._reader.list_messages(condition, given, "JOIN sessions s ON s.id = p.session")

    def note_shown(self, session: int, message: Message) -> None:
        """Note that all parts of a message were shown in another way."""
        for part in message["parts"]:
            self._add_content(session, message, part)

    def _read(self, messages: list[MessageOutline]) -> Iterator[Arrival]:
        names = self._reader.load_names(each.thread for each in messages)
        for each in messages:
            for message in self._reader.read_messages([(each, names[each.thread])]):
                parts = [part for part in message["parts"] if self._add_content(each.session, message, part)]
                if parts:
                    yield Arrival(self._describe(each.session), {**message, "parts": parts})

    def _add_content(self, session: int, message: Message, part: dict[str, Any]) -> bool:
        """Note the content of a part. Return whether no part with this content was shown, or only an earlier one."""
        said = part["tool_result_for"] or part["tool_call_id"] or part["text"] or part["part_id"]
        fields = repr((self._find_key(session), message["thread"], message["role"], part["type"], said))
        key = hashlib.blake2b(fields.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        at, known = to_moment(datetime.fromisoformat(message["at"])), self._contents.get(key, -1)
        self._contents[key] = max(at, known)
        while len(self._contents) > _MAX_REMEMBERED:
            del self._contents[next(iter(self._contents))]
        return at > known

    def _describe(self, session: int) -> dict[str, Any]:
        if session not in self._documents:
            self._documents[session] = session_document(self._index, session, load_prices(self._index.home))
        return self._documents[session]


def take_signature(home: Home) -> Signature:
    """Return what changes whenever a row is written to the spool or to the lake."""
    found = []
    for folder in ("active", "sealed", "incoming"):
        found += _list_files(home.spool / DATASET / folder)
    for path in (home.catalog, home.catalog.with_name(f"{home.catalog.name}-wal")):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _list_files(folder: Path) -> list[tuple[str, int, int]]:
    try:
        return sorted((path.name, (status := path.stat()).st_size, status.st_mtime_ns) for path in folder.iterdir())
    except OSError:
        # The folder does not exist yet, or a segment has just been sealed: the next look finds it.
        return []
