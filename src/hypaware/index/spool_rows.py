"""Index the rows of the spool, so that what was said a second ago is found.

The row in line n of a segment is indexed as `SPOOLED | id of the segment << 32 | n`. Rows of a segment that is gone are
removed, after the lake has been read. Of a part that the spool holds twice, or that the lake has, one row is indexed,
as the next flush will decide: by dedupe key, and between live rows and native rows by match key (`matched_rows`).

Only new lines are read, from the byte where the last refresh stopped. All segments are read again if a segment was
rewritten, if the lake has lost or changed rows (a row that was left out may be needed now), and, in a home that has
live rows, after every change. Rows that are indexed already stay as they are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hypaware.home import Home
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.index.database import write_meta
from hypaware.index.matched_rows import find_superseded
from hypaware.index.parts import COLUMNS, Part, hash_message_id, hash_part, make_part, to_microseconds
from hypaware.index.schema import DATASET, SPOOLED
from hypaware.index.writer import IndexWriter
from hypaware.model import datasets
from hypaware.model.datasets import Row, RowRejected, hash_row_key
from hypaware.spool import segments

_BATCH_ROWS = 2_000
_SEGMENT_BITS = 32
AGAIN = "spool_again"
"""In `meta` while all segments have to be read again."""
_PartKey = tuple[str, int, int]
"""Machine, hash of the message id, part index."""


class SpoolRow(NamedTuple):
    seq: int
    row: Row

    @property
    def key(self) -> _PartKey:
        return self.row["gateway_id"], hash_message_id(self.row["message_id"]), self.row["part_index"]


@dataclass(frozen=True)
class SpoolFile:
    """A segment, as listed. Its name is the one that it had while it was active."""

    name: str
    path: Path
    inode: int
    size: int


@dataclass
class _Segment:
    id: int
    inode: int
    read_bytes: int
    read_lines: int


class SegmentVanished(Exception):
    """A listed segment was committed in the meantime: the lake has to be read again."""


def list_spool(home: Home) -> list[SpoolFile]:
    """Return the segments with rows, oldest first. List them before the catalog is read."""
    folder = segments.spool_folder(home, DATASET)
    found: dict[str, SpoolFile] = {}
    # Active files first: one that is sealed in between is found again as sealed.
    for directory in (folder.active, folder.sealed):
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.endswith(segments.SUFFIX):
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    name = entry.name.partition(".")[0]
                    if status.st_size:
                        found[name] = SpoolFile(name, Path(entry.path), status.st_ino, status.st_size)
    return [found[name] for name in sorted(found)]


def is_unchanged(connection: sqlite3.Connection, files: Sequence[SpoolFile]) -> bool:
    """Return whether all of the spool is indexed."""
    return _read_sizes(connection) == {(file.name, file.inode): file.size for file in files}


def _read_sizes(connection: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """Return how many bytes of each segment, by name and inode, are indexed."""
    query = "SELECT name, inode, read_bytes FROM segments"
    return {(name, inode): size for name, inode, size in connection.execute(query)}


def count_unread_bytes(connection: sqlite3.Connection, files: Sequence[SpoolFile]) -> int:
    read = _read_sizes(connection)
    return sum(max(file.size - read.get((file.name, file.inode), 0), 0) for file in files)


def count_unread(connection: sqlite3.Connection | None, files: Sequence[SpoolFile]) -> int:
    """Count the lines of the spool that are not indexed."""
    read = _read_sizes(connection) if connection else {}
    lines = 0
    for file in files:
        with suppress(FileNotFoundError), open_listed(file) as opened:
            opened.seek(min(read.get((file.name, file.inode), 0), file.size))
            while block := opened.read(1 << 20):
                lines += block.count(b"\n")
    return lines


class SpoolIndexer:
    def __init__(self, home: Home, writer: IndexWriter, own_gateway: str) -> None:
        self._home = home
        self._writer = writer
        self._connection = writer.connection
        self._own_gateway = own_gateway
        self._dataset = datasets.get(DATASET)
        self.added = 0
        self.problems: dict[Path, OSError] = {}

    def remove_gone(self, files: Sequence[SpoolFile]) -> None:
        """Remove the rows of segments that do not exist any more."""
        listed = {file.name for file in files}
        known = self._connection.execute("SELECT id, name FROM segments").fetchall()
        for number in [number for number, name in known if name not in listed]:
            base = SPOOLED | number << _SEGMENT_BITS
            self._remove_between(base, base + (1 << _SEGMENT_BITS) - 1)
            self._connection.execute("DELETE FROM segments WHERE id = ?", (number,))

    def remove_committed(self) -> None:
        """Remove rows whose part the lake has now."""
        query = "SELECT DISTINCT session FROM parts WHERE seq >= ?"
        for (session,) in self._connection.execute(query, (SPOOLED,)).fetchall():
            rows = self._connection.execute("SELECT message, part_index, seq FROM parts WHERE session = ?", (session,))
            spooled, committed = [], set()
            for *part, seq in rows:
                if seq < SPOOLED:
                    committed.add(tuple(part))
                else:
                    spooled.append((tuple(part), seq))
            self._writer.remove([seq for part, seq in spooled if part in committed])

    def read(self, files: Sequence[SpoolFile], *, again: bool) -> None:
        """Index the rows of the segments: new lines, or all lines if `again` or if a segment was rewritten."""
        known = self._known_segments()
        for file in files:
            segment = known.get(file.name)
            again = again or (segment is not None and (segment.inode != file.inode or segment.read_bytes > file.size))
        self._writer.begin()
        hidden: Collection[int] = ()
        if again:
            write_meta(self._connection, AGAIN, 1)
            self._connection.execute("UPDATE segments SET read_bytes = 0, read_lines = 0")
            known = {file.name: self._register(file) for file in files}
            hidden = self._find_hidden(files, known)
        for file in files:
            segment = known.get(file.name) or self._register(file)
            if segment.read_bytes < file.size:
                self._read_segment(file, segment, hidden, again=again)
        if again and not self.problems:
            self._connection.execute("DELETE FROM meta WHERE key = ?", (AGAIN,))

    def _register(self, file: SpoolFile) -> _Segment:
        self._writer.begin()
        self._connection.execute(
            "INSERT INTO segments (name, inode, read_bytes, read_lines) VALUES (?, ?, 0, 0)"
            " ON CONFLICT (name) DO UPDATE SET inode = excluded.inode",
            (file.name, file.inode),
        )
        ((number,),) = self._connection.execute("SELECT id FROM segments WHERE name = ?", (file.name,))
        return _Segment(number, file.inode, 0, 0)

    def _known_segments(self) -> dict[str, _Segment]:
        rows = self._connection.execute("SELECT name, id, inode, read_bytes, read_lines FROM segments")
        return {name: _Segment(*values) for name, *values in rows}

    def _read_segment(self, file: SpoolFile, segment: _Segment, hidden: Collection[int], *, again: bool) -> None:
        base = SPOOLED | segment.id << _SEGMENT_BITS
        for rows, read_bytes, read_lines in self._read_batches(file, segment):
            if again:
                lines = range(base + segment.read_lines, base + read_lines)
                self._synchronize(lines, [each for each in rows if each.seq not in hidden])
            else:
                self._insert(self._drop_duplicates(rows))
            segment = _Segment(segment.id, segment.inode, read_bytes, read_lines)
            self._connection.execute(
                "UPDATE segments SET read_bytes = ?, read_lines = ? WHERE id = ?", (read_bytes, read_lines, segment.id)
            )
            self._writer.commit()
            self._writer.begin()
        if again:
            # A rewritten segment may have fewer lines.
            self._remove_between(base + segment.read_lines, base + (1 << _SEGMENT_BITS) - 1)

    def _synchronize(self, lines: range, visible: Sequence[SpoolRow]) -> None:
        """Make the visible rows of these lines the indexed ones. Rows that are indexed already stay as they are."""
        query = "SELECT seq, hash FROM parts WHERE seq BETWEEN ? AND ?"
        indexed = dict(self._connection.execute(query, (lines.start, lines.stop - 1)).fetchall())
        parts = [self._make_part(each) for each in visible]
        unchanged = {part.seq for part in parts if indexed.get(part.seq) == part.hash}
        self._writer.remove([seq for seq in indexed if seq not in unchanged])
        self._writer.insert([part for part in parts if part.seq not in unchanged], 0)
        self.added += len(parts) - len(unchanged)

    def _insert(self, rows: Sequence[SpoolRow]) -> None:
        self._writer.insert([self._make_part(each) for each in rows], 0)
        self.added += len(rows)

    def _make_part(self, spooled: SpoolRow) -> Part:
        row = spooled.row
        values = {**row, "message_created_at": to_microseconds(row["message_created_at"])}
        columns: list[Any] = [values.get(name) for name in COLUMNS]
        part = make_part(self._writer.with_text, spooled.seq, *columns)
        part.hash = hash_part(part)
        return part

    def _read_batches(self, file: SpoolFile, segment: _Segment) -> Iterator[tuple[list[SpoolRow], int, int]]:
        """Yield rows of whole lines, with the bytes and lines that are then read."""
        read_bytes, read_lines = segment.read_bytes, segment.read_lines
        try:
            with open_listed(file) as opened:
                opened.seek(read_bytes)
                while lines := _read_lines(opened, file.size - read_bytes):
                    rows = []
                    for number, line in enumerate(lines, read_lines):
                        # The flush sets rejected lines aside.
                        with suppress(RowRejected):
                            row = segments.decode_line(self._dataset, line, number)
                            rows.append(SpoolRow(SPOOLED | segment.id << _SEGMENT_BITS | number, row))
                    read_bytes += sum(map(len, lines))
                    read_lines += len(lines)
                    yield rows, read_bytes, read_lines
        except FileNotFoundError:
            raise SegmentVanished(str(file.path)) from None
        except OSError as error:
            self.problems[file.path] = error

    def _drop_duplicates(self, rows: Sequence[SpoolRow]) -> list[SpoolRow]:
        """Return the rows whose part is not indexed, the first of each part."""
        known = self._indexed_parts(rows, before=(1 << 63) - 1)
        kept = []
        for each in rows:
            if each.key not in known:
                known.add(each.key)
                kept.append(each)
        return kept

    def _indexed_parts(self, rows: Sequence[SpoolRow], *, before: int) -> set[_PartKey]:
        """Return the parts of the sessions of these rows that are indexed below a sequence."""
        found: set[_PartKey] = set()
        query = (
            "SELECT n.name, p.message, p.part_index FROM sessions s JOIN names n ON n.id = s.machine"
            " JOIN parts p ON p.session = s.id WHERE s.session_id = ? AND n.name = ? AND p.seq < ?"
        )
        for session_id, machine in {(each.row["session_id"], each.row["gateway_id"]) for each in rows}:
            found.update(self._connection.execute(query, (session_id, machine, before)))
        # A fork repeats parts of another session. The key index of the lake knows them.
        hashes = {hash_row_key(self._dataset, each.row, self._own_gateway): each.key for each in rows}
        for digest, seq in self._look_up_keys([digest for digest in hashes if digest is not None]):
            if self._connection.execute("SELECT 1 FROM parts WHERE seq = ?", (seq,)).fetchone():
                found.add(hashes[digest])
        return found

    def _look_up_keys(self, hashes: Sequence[bytes]) -> list[tuple[bytes, int]]:
        from hypaware.lake.key_index import lookup_keys

        with suppress(OSError, sqlite3.Error):
            if self._home.keys.is_file():
                with open_readonly(self._home.keys) as keys:
                    if has_table(keys, "keys"):
                        return [(bytes(digest), seq) for digest, seq in lookup_keys(keys, sorted(hashes))]
        return []

    def _find_hidden(self, files: Sequence[SpoolFile], known: dict[str, _Segment]) -> set[int]:
        """Return the rows of the whole spool that are not to be indexed."""
        hidden: set[int] = set()
        first: dict[int, int] = {}
        live: set[int] = set()
        assert self._dataset.match_rules is not None
        may_be_live = self._dataset.match_rules.may_be_live
        for file in files:
            for rows, *_ in self._read_batches(file, known[file.name]):
                committed = self._indexed_parts(rows, before=SPOOLED)
                for each in rows:
                    if each.key in committed:
                        hidden.add(each.seq)
                        continue
                    if may_be_live(each.row):
                        live.add(each.seq)
                    kept = first.setdefault(hash(each.key), each.seq)
                    if kept == each.seq:
                        continue
                    # A native row is kept before a live row of the same part, otherwise the first.
                    if kept in live and each.seq not in live:
                        first[hash(each.key)] = each.seq
                        hidden.add(kept)
                    else:
                        hidden.add(each.seq)
        spooled = (each for file in files for rows, *_ in self._read_batches(file, known[file.name]) for each in rows)
        visible = ((each.seq, each.row) for each in spooled if each.seq not in hidden)
        return hidden | find_superseded(self._connection, visible)

    def _remove_between(self, first: int, last: int) -> None:
        self._writer.begin()
        query = "SELECT seq FROM parts WHERE seq BETWEEN ? AND ? LIMIT ?"
        while seqs := [seq for (seq,) in self._connection.execute(query, (first, last, _BATCH_ROWS))]:
            self._writer.remove(seqs)


def open_listed(file: SpoolFile) -> BinaryIO:
    """Open a segment that may have been sealed since it was listed. Raise FileNotFoundError if it was committed."""
    try:
        return open(file.path, "rb")
    except FileNotFoundError:
        for sealed in file.path.parent.parent.glob(f"sealed/{file.name}.*{segments.SUFFIX}"):
            return open(sealed, "rb")
        raise


def _read_lines(file: BinaryIO, limit: int) -> list[bytes]:
    """Return some whole lines, as far as the file reached when it was listed."""
    lines: list[bytes] = []
    size = 0
    for line in islice(file, _BATCH_ROWS):
        size += len(line)
        if size > limit or not line.endswith(b"\n"):
            break
        lines.append(line)
    return lines
