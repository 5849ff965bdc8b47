"""What the other machines of a shared lake must forget after a purge.

A purge reaches the tables, the bucket and the database. A machine has more: its key index and `index.db`, rejects of
its flushes, and the remembered names of folders. A purge notes in the database what is to be forgotten, before it
removes the first row. Each machine does that when its engine has acquired the lease, before its first job
(`forget_purged`), and keeps the number of the last note that it has done (`lake/purges-done.json`). Purges need the
lease too, so no job of any machine runs with what was purged before it began. Purged rows in the spool of a machine
are kept out by its next flush; the index, which shows the spool, is scrubbed once more when the engine starts again.

`purge_notes`, in order of numbers, name a purged value (`kind`, and its hash in `mark`, as in `purges`), a session
of a purged folder (kind `folder-session`), a key index that must be built again (kind `index`), or the sequences of
rows that leave a table (`dataset`, `seqs`). `removed` says that the commit has happened: until then the keys of such
rows are indexed again afterwards, because the lake may still have them. A note of kind `lost` is of no purge: imports
may restore rows that retention has dropped up to the first sequence in `seqs`, under their sequences if these are not
above the second one.

@ref keeping#purge
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home, durable_files
from hypaware.index.scrub import scrub_index
from hypaware.lake import key_index, lost_rows, prepare, tombstones
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.lost_rows import LostRange
from hypaware.lake.tombstones import SESSION_COLUMN, Tombstone, hash_purged_value
from hypaware.maintain.context import ignore
from hypaware.maintain.purge import copies
from hypaware.maintain.purge.selector import CWD
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, hash_row_key
from hypaware.privacy import folder_memory
from hypaware.spool import reader, segments
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.store import Connection, StateStore

FOLDER_SESSION, WHOLE_INDEX, LOST = "folder-session", "index", "lost"
_WORD = re.compile(r"""[^\s"'\\,{}\[\]]+""")
_SCHEMA = """CREATE TABLE IF NOT EXISTS purge_notes (
    number BIGINT PRIMARY KEY, kind TEXT, mark BLOB, before TEXT, dataset TEXT, seqs BLOB,
    removed INTEGER NOT NULL DEFAULT 0)"""
_before_done = faults.crash_point(
    "maintain.purge.before-done", "this machine has forgotten what another one purged, and has not noted that"
)
_after_done = faults.crash_point("maintain.purge.after-done", "this machine has noted that it forgot what was purged")


def note_values(home: Home, store: StateStore, values: Sequence[Tombstone]) -> None:
    """Note what is purged from a shared lake. Durable."""
    if find_shared_lake(home) is not None:
        _add_notes(store, [{"kind": each.kind, "mark": each.value_hash, "before": each.before} for each in values])


def note_sessions(home: Home, store: StateStore, sessions: Sequence[str]) -> None:
    """Note the sessions that worked in the purged folders. Durable."""
    if sessions and find_shared_lake(home) is not None:
        marks = [hash_purged_value(FOLDER_SESSION, session) for session in sessions]
        _add_notes(store, [{"kind": FOLDER_SESSION, "mark": mark} for mark in marks])


def note_index(home: Home, store: StateStore) -> None:
    """Note that the key indexes have keys of rows that may come back, and only they know which. Durable."""
    if find_shared_lake(home) is not None:
        _add_notes(store, [{"kind": WHOLE_INDEX}])


def note_lost(home: Home, store: StateStore, dataset: str, lost: LostRange) -> None:
    """Note the rows that imports on any machine may restore now. Durable."""
    if find_shared_lake(home) is not None:
        seqs = array("q", (lost.last, lost.delivered)).tobytes()
        _add_notes(store, [{"kind": LOST, "dataset": dataset, "seqs": seqs}])


@contextmanager
def noted_rows(home: Home, store: StateStore, dataset: str, seqs: Iterable[int]) -> Iterator[None]:
    """Note, around the commit that removes them, the sequences of the rows that leave a table of a shared lake."""
    if find_shared_lake(home) is None:
        yield
        return
    (number,) = _add_notes(store, [{"dataset": dataset, "seqs": _pack(seqs)}])
    yield
    with store.transaction() as connection:
        connection.execute("UPDATE purge_notes SET removed = 1 WHERE number = ?", (number,))


def mark_done(home: Home, store: StateStore) -> None:
    """Note that this machine has forgotten everything, because it has run the purge itself."""
    if find_shared_lake(home) is None:
        return
    opened = open_home(home)
    opened.store.close()
    with store.reading() as connection:
        notes = _read_notes(connection, 0)
    if notes:
        _write_done(opened, notes[-1]["number"])


def forget_purged(home: Home, progress: Callable[[str], object] = ignore) -> None:
    """Forget what other machines have purged since this one last had the lease."""
    if find_shared_lake(home) is None:
        return
    opened = open_home(home)
    number, is_scrub_due = _read_done(opened)
    with closing(opened.store) as store, store.reading() as connection:
        notes = _read_notes(connection, number)
    if not notes:
        if is_scrub_due:
            scrub_index(home)
            _write_done(opened, number)
        return
    progress("forgetting what another machine has purged")
    _forget_keys(home, notes)
    purged = _PurgedValues.of(home, notes)
    for dataset in datasets.list_all():
        for path in copies.rejected_files(home, dataset):
            matching = purged.find_lines(dataset, copies.original_lines(path), opened.gateway_id)
            copies.rewrite_lines(path, matching.__contains__)
    folder_memory.forget_names(home, purged.list_folders(folder_memory.read_folders(home)))
    scrub_index(home)
    has_spool = any(reader.summarize_spool(home, name).segments for name in segments.list_spooled_datasets(home))
    _before_done()
    _write_done(opened, notes[-1]["number"], is_scrub_due=has_spool)
    _after_done()


def _add_notes(store: StateStore, notes: Sequence[Mapping[str, Any]]) -> list[int]:
    with store.transaction() as connection:
        connection.execute(_SCHEMA)
        first = _last_number(connection) + 1
        for number, note in enumerate(notes, first):
            connection.insert("purge_notes", {"number": number, **note})
    return list(range(first, first + len(notes)))


def _last_number(connection: Connection) -> int:
    return int(connection.value("SELECT coalesce(max(number), 0) FROM purge_notes"))


def _read_notes(connection: Connection, after: int) -> list[dict[str, Any]]:
    if not connection.has_table("purge_notes"):
        return []
    return connection.rows("SELECT * FROM purge_notes WHERE number > ? ORDER BY number", (after,))


def _read_done(opened: OpenHome) -> tuple[int, bool]:
    """Return the number of the last note that this machine has done, and whether the index must be scrubbed again.

    The notes of another incarnation are others.
    """
    try:
        found = json.loads(_done_file(opened.home).read_bytes())
    except FileNotFoundError:
        return 0, False
    if found["incarnation"] != opened.identity.incarnation:
        return 0, False
    return int(found["number"]), bool(found["scrub"])


def _write_done(opened: OpenHome, number: int, *, is_scrub_due: bool = False) -> None:
    done = {"incarnation": opened.identity.incarnation, "number": number, "scrub": is_scrub_due}
    durable_files.make_dir(opened.home.lake)
    durable_files.write_atomic(_done_file(opened.home), json.dumps(done).encode())


def _done_file(home: Home) -> Path:
    return home.lake / "purges-done.json"


def _forget_keys(home: Home, notes: Sequence[Mapping[str, Any]]) -> None:
    """Remove the keys of the rows. If the lake may still have some of them, the table is indexed again."""
    if any(note["kind"] == WHOLE_INDEX for note in notes):
        key_index.remove_index(home.keys)
    if not home.keys.is_file():
        return
    with closing(KeyIndex(home.keys)) as index:
        removed = [note for note in notes if note["dataset"] and note["kind"] != LOST]
        for dataset in sorted({note["dataset"] for note in removed}):
            chosen = [note for note in removed if note["dataset"] == dataset]
            uuid = index.table_uuid(dataset)
            through = index.indexed_through(dataset, uuid) if uuid else None
            index.remove_rows(dataset, (seq for note in chosen for seq in _unpack(note["seqs"])))
            if through and all(note["removed"] for note in chosen):
                index.mark_complete(dataset, through)
        for note in notes:
            if note["kind"] == LOST:
                last, delivered = array("q", bytes(note["seqs"]))
                lost_rows.mark_lost(home, index, [LostRange(1, last, delivered)])


def _pack(seqs: Iterable[int]) -> bytes:
    """Pack sequences as the first and the last one of each range."""
    ranges = array("q")
    for seq in sorted(set(seqs)):
        if ranges and ranges[-1] == seq - 1:
            ranges[-1] = seq
        else:
            ranges.extend((seq, seq))
    return ranges.tobytes()


def _unpack(packed: bytes) -> Iterator[int]:
    bounds = iter(array("q", bytes(packed)))
    for first, last in zip(bounds, bounds, strict=True):
        yield from range(first, last + 1)


def _enclosing(folder: str) -> Iterator[str]:
    """Yield the folder and those that contain it, down to the root, which is empty."""
    yield folder
    yield from (folder[: match.start()] for match in re.finditer(r"[/\\]", folder))


@dataclass(frozen=True)
class _PurgedValues:
    """The purged values of notes, by their hashes."""

    home: Home
    marks: frozenset[tuple[str, bytes]]
    before: str | None

    @classmethod
    def of(cls, home: Home, notes: Sequence[Mapping[str, Any]]) -> _PurgedValues:
        marks = frozenset((note["kind"], bytes(note["mark"])) for note in notes if note["mark"])
        return cls(home, marks, max((note["before"] for note in notes if note["before"]), default=None))

    def find_lines(self, dataset: Dataset, lines: Iterable[bytes], own_gateway: str | None) -> set[bytes]:
        """Return the rejected lines that hold a purged row."""
        found, keys = set[bytes](), dict[bytes, bytes]()
        for line in lines:
            if not (raw := prepare.extract_row(line)):
                # The line cannot be parsed; a session's id is one word of it.
                if any(self._has("session", word) for word in _WORD.findall(line.decode(errors="replace"))):
                    found.add(line)
                continue
            row = prepare.coerce_leniently(dataset, raw)
            if self._matches(dataset, row):
                found.add(line)
            elif key := hash_row_key(dataset, row, own_gateway):
                keys[line] = key
        purged = tombstones.read_tombstones(self.home).find(set(keys.values()))
        return found | {line for line, key in keys.items() if key in purged}

    def list_folders(self, names: Iterable[str]) -> list[str]:
        """Return the purged folders that contain the named ones."""
        return sorted({folder for name in names for folder in _enclosing(name) if self._has("cwd", folder)})

    def _has(self, kind: str, value: str) -> bool:
        return (kind, hash_purged_value(kind, value)) in self.marks

    def _matches(self, dataset: Dataset, row: Mapping[str, Any]) -> bool:
        if self._has("source", dataset.source_of(row)):
            return True
        at = row.get(dataset.time_column)
        if self.before is not None and isinstance(at, str) and at < self.before:
            return True
        session, folder = row.get(SESSION_COLUMN), row.get(CWD)
        if isinstance(session, str) and (
            self._has("session", session)
            or (
                CWD not in dataset.coercers
                and (FOLDER_SESSION, hash_purged_value(FOLDER_SESSION, session)) in self.marks
            )
        ):
            return True
        return isinstance(folder, str) and any(self._has("cwd", each) for each in _enclosing(folder))
