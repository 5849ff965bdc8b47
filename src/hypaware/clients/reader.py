"""Read one pinned source: exactly the bytes that it had when the import began, line by line, in bounded memory.

A line is read whole or not at all. A last line without a newline counts if it is complete JSON; otherwise it is left
for the next import. The values of a large source are not kept in memory: a line is parsed again when its value is
needed.

A compressed source (`.zst`) is unpacked first; offsets are those of its content. It does not grow, it is replaced:
whenever it is due it is read as a whole, and the key index drops the rows that the lake has.

A database (`.db`) has no lines; `clients.database_source` reads it, and a cursor takes the place of the offset.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from hypaware.clients import compressed_content
from hypaware.home.durable_files import open_regular_file
from hypaware.model import canonical
from hypaware.state.titles import SessionTitle

MAX_LINE_BYTES = 64 << 20
_MAX_RANGES = 1000
_MAX_TYPE_NAMES = 20
_DATABASE = ".db"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_KEPT_BYTES = 24 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class TimeWindow:
    """An inclusive range of times in canonical UTC text; None is unbounded. A missing time is inside."""

    since: str | None = None
    until: str | None = None

    def contains(self, time: str | None) -> bool:
        if time is None:
            return True
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)

    def covers(self, other: TimeWindow) -> bool:
        lower = self.since is None or (other.since is not None and self.since <= other.since)
        upper = self.until is None or (other.until is not None and self.until >= other.until)
        return lower and upper


@dataclass(frozen=True)
class SourceSnapshot:
    """The state of a source when the import began, and the part that earlier imports have read."""

    path: Path
    inode: int
    size: int
    mtime_ns: int
    consumed: int = 0
    """Lines that begin before this offset were imported by an earlier run, except those in `held` and `left_out`."""
    prefix_hash: str = ""
    """SHA-256 of the bytes before `consumed`; the cursor of a database."""
    held: frozenset[str] = frozenset()
    """Messages that the earlier import held back because they were unfinished."""
    quiet: bool = True
    """The file has not been written to for a while, so unfinished messages will stay unfinished."""
    window: TimeWindow = TimeWindow()
    left_out: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets before `consumed` that were not imported because they were outside the window."""
    ignored: tuple[tuple[str | None, str | None], ...] = ()
    """(folder, session) of lines before `consumed` that were not imported because they are ignored."""
    released: frozenset[str] = frozenset()
    """Unfinished messages that were held back long enough: they are read as they are now."""


class SourceChanged(Exception):
    """The file is no longer the pinned one; it stays due."""


class SourceLine:
    """One line of a source; it holds a JSON object."""

    __slots__ = ("_reader", "_value", "end", "offset")

    def __init__(self, reader: SourceReader, offset: int, end: int, value: dict[str, Any] | None) -> None:
        self._reader = reader
        self._value = value
        self.offset = offset
        self.end = end

    def forget(self) -> None:
        self._value = None

    @property
    def value(self) -> dict[str, Any]:
        """Parsed again on every access for earlier lines of a large source, so keep what you need."""
        if self._value is not None:
            return self._value
        value: dict[str, Any] = canonical.loads(self._reader.bytes_at(self.offset, self.end))
        return value


@dataclass
class SourceReader:
    """One pass over a source. The provider records here what it skips and what it holds back."""

    source: SourceSnapshot
    copy: Path | None = None
    """A copy of the pinned bytes (`read_pinned`), which is read instead, on a machine that does not have the source."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → lines (or parts of lines) that make no row."""
    held: set[str] = field(default_factory=set)
    """Unfinished messages, under ids that the provider chooses. They keep the source due."""
    consumed: int = 0
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets that `wants` excluded in this import; adjacent ranges are merged."""
    excluded_with: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of lines that make no row and belong to an excluded message."""
    titles: list[SessionTitle] = field(default_factory=list)
    """The titles of sessions, in the order of the source, whether or not an earlier import has read them."""
    leaves: dict[str, str] = field(default_factory=dict)
    """Last messages → their sessions, for titles in other sources that name a message."""
    _window_applied: bool = False
    _range_closed: bool = True
    size: int = field(init=False)
    """The size of the content, which is that of the source unless it is compressed."""
    _file: BinaryIO | None = None
    _consumed_digest: Any = field(default_factory=hashlib.sha256)
    _packed_hash: str | None = None
    _cursor: str | None = None

    def __post_init__(self) -> None:
        self.size = self.source.size

    def __enter__(self) -> SourceReader:
        """Open the source. Start from its beginning if the bytes that earlier imports read have changed."""
        source, has_lines = self.source, not is_database(self.source.path)
        self._file = file = open_pinned(source) if self.copy is None else open_regular_file(self.copy)
        with ExitStack() as on_failure:
            on_failure.callback(file.close)
            if compressed_content.is_compressed(source.path):
                self._unpack(file)
                return self
            if has_lines and source.consumed and self._hash_prefix(source.consumed) != source.prefix_hash:
                self._forget_earlier_imports()
            on_failure.pop_all()
        return self

    def _unpack(self, packed: BinaryIO) -> None:
        self._packed_hash = self._hash_prefix(self.source.size)
        self._file, is_whole = compressed_content.unpack(packed, self.source.size)
        self.size = os.fstat(self._file.fileno()).st_size
        if not is_whole:
            self.skipped["damaged_compression"] += 1
        self._forget_earlier_imports()

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def is_new(self, offset: int, message: str | None = None) -> bool:
        """Return whether no import has read the line at this offset, or the message that it belongs to."""
        source = self.source
        if offset >= source.consumed or message in source.held:
            return True
        place = bisect_right(source.left_out, (offset, source.size)) - 1
        return place >= 0 and offset < source.left_out[place][1]

    def wants(self, line: SourceLine, time: str | None, *, new: bool = True) -> bool:
        """Return whether a line that can make rows should make them now: it is new, and its time is in the window.

        Call it once for each such line, in file order, with the time in canonical form. Lines outside the window are
        recorded, so that a later import reads exactly those.
        """
        self._window_applied = True
        if new and not self.source.window.contains(time):
            if self.left_out and (not self._range_closed or len(self.left_out) >= _MAX_RANGES):
                self.left_out[-1] = (self.left_out[-1][0], line.end)
            else:
                self.left_out.append((line.offset, line.end))
            self._range_closed = False
            return False
        self._range_closed = True
        return new

    def effective_window(self) -> TimeWindow:
        """Return the window of the checkpoint: unbounded if nothing was excluded."""
        if not self._window_applied and self.source.window != TimeWindow():
            # The provider never called `wants`, so any line may be missing.
            self.left_out = [(0, self.size)]
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self.left_out + self.excluded_with):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        self.left_out = merged
        return self.source.window if self.left_out else TimeWindow()

    def _hash_prefix(self, size: int) -> str:
        digest = hashlib.sha256()
        for start in range(0, size, _BLOCK):
            digest.update(self.bytes_at(start, min(start + _BLOCK, size)))
        return digest.hexdigest()

    def _forget_earlier_imports(self) -> None:
        self.source = replace(self.source, consumed=0, prefix_hash="", held=frozenset(), left_out=(), ignored=())

    def lines(self) -> Iterator[SourceLine]:
        """Yield every line that holds a JSON object, from the beginning of the source."""
        assert self._file is not None
        self._file.seek(0)
        self._consumed_digest, self.consumed = hashlib.sha256(), 0
        offset, size = 0, self.size
        while offset < size:
            raw = self._file.readline(min(MAX_LINE_BYTES, size - offset))
            if not raw:
                raise SourceChanged("the file was truncated while it was read")
            whole = raw.endswith(b"\n")
            if not whole and len(raw) >= MAX_LINE_BYTES:
                self._skip(offset, "line_too_long")
                offset = self._skip_long_line(self._file, raw, offset)
                continue
            end, value = offset + len(raw), None
            if not raw.isspace():
                try:
                    value = canonical.loads(raw)
                except (ValueError, RecursionError) as error:
                    self._skip(offset, _explain_invalid_json(raw, error) if whole else "half_line")
                else:
                    if not isinstance(value, dict):
                        self._skip(offset, "not_an_object" if whole else "half_line")
                        value = None
            if whole or value is not None:
                self._consumed_digest.update(raw)
                self.consumed = end
            if value is not None:
                line = SourceLine(self, offset, end, value)
                yield line
                if size > _MAX_KEPT_BYTES:
                    line.forget()
            offset = end

    def read_all(self) -> bytes | None:
        """Return the whole source, for sources that are one document; None if it is too large."""
        if self.size > MAX_LINE_BYTES:
            return None
        data = self.bytes_at(0, self.size)
        self._consumed_digest, self.consumed = hashlib.sha256(data), len(data)
        return data

    def bytes_at(self, start: int, end: int) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) != end - start:
            raise SourceChanged("the file was truncated while it was read")
        return data

    @property
    def checkpoint_offset(self) -> int:
        """The offset before which everything was read. Compressed sources and databases are read as a whole."""
        return self.consumed if self._packed_hash is None and self._cursor is None else self.source.size

    def set_cursor(self, cursor: str, *, is_complete: bool) -> None:
        """Set the cursor of a database, and whether the time window excluded nothing."""
        self._cursor, self._window_applied = cursor, True
        self.left_out = [] if is_complete else [(0, self.size)]

    @property
    def consumed_hash(self) -> str:
        """SHA-256 of the bytes before it, as they were read, whatever the file has now; the cursor of a database."""
        return self._cursor or self._packed_hash or str(self._consumed_digest.hexdigest())

    def _skip_long_line(self, file: BinaryIO, raw: bytes, offset: int) -> int:
        """Read to the end of a long line in blocks, and return the offset of the next line."""
        digest = self._consumed_digest.copy()
        while raw:
            digest.update(raw)
            offset += len(raw)
            if raw.endswith(b"\n"):
                self._consumed_digest, self.consumed = digest, offset
                return offset
            if offset >= self.size:
                return offset
            raw = file.readline(min(_BLOCK, self.size - offset))
        raise SourceChanged("the file was truncated while it was read")

    def _skip(self, offset: int, reason: str) -> None:
        """Count a skipped line, unless an earlier import counted it."""
        if self.is_new(offset):
            self.skipped[reason] += 1


def open_pinned(source: SourceSnapshot) -> BinaryIO:
    """Open the file of a source. Raise SourceChanged if it is no longer the pinned one."""
    file = open_regular_file(source.path)
    found = os.fstat(file.fileno())
    is_cut = found.st_size < source.size and not is_database(source.path)
    if get_inode(found) != source.inode or is_cut:
        file.close()
        raise SourceChanged("the file was replaced or truncated after it was pinned")
    return file


def read_pinned(source: SourceSnapshot) -> Iterator[bytes]:
    """Yield the pinned bytes of a source that is not a database, a block at a time."""
    with open_pinned(source) as file:
        for start in range(0, source.size, _BLOCK):
            data = os.pread(file.fileno(), min(_BLOCK, source.size - start), start)
            if len(data) < min(_BLOCK, source.size - start):
                raise SourceChanged("the file was truncated while it was read")
            yield data


def is_database(path: Path) -> bool:
    return path.suffix == _DATABASE


def measure(path: Path, status: os.stat_result) -> tuple[int, int]:
    """Return size and modification time of a source. What was written last to a database is in a file next to it."""
    size, mtime_ns = status.st_size, status.st_mtime_ns
    if is_database(path):
        with suppress(OSError):
            side = path.with_name(f"{path.name}-wal").stat()
            size, mtime_ns = size + side.st_size, max(mtime_ns, side.st_mtime_ns)
    return size, mtime_ns


def get_inode(status: os.stat_result) -> int:
    """Return the inode number, cut to 63 bits: some file systems use larger numbers than SQLite can store."""
    return status.st_ino & (2**63 - 1)


def _explain_invalid_json(raw: bytes, error: Exception) -> str:
    if b"\0" in raw:
        return "nul_bytes"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return "nested_too_deeply" if isinstance(error, RecursionError) or "depth" in str(error) else "not_json"


def unknown_type_reason(kind: Any, skipped: Counter[str]) -> str:
    """Return the skip reason for an unknown type: printable, short, and limited in number."""
    name = _UNSAFE.sub("?", kind[:40]) if isinstance(kind, str) and kind else "none"
    reason = f"unknown_type:{name}"
    if reason not in skipped and sum(known.startswith("unknown_type:") for known in skipped) >= _MAX_TYPE_NAMES:
        return "unknown_type:others"
    return reason


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
