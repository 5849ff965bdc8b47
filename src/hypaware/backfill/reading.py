"""Reading one pinned source: exactly the bytes that were there when it was pinned, line by line, within bounds.

A line is taken whole or not at all. The last one may lack its newline: it counts if it is complete JSON, else it is
left for the next import. Large sources are not kept in memory: a line's value is then parsed again when it is asked
for.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from hypaware.backfill.pinned import Pinned, Window, inode_of
from hypaware.model import canonical
from hypaware.regular import open_regular

MAX_LINE_BYTES = 64 << 20
_MAX_RANGES = 1000
_KEPT_BYTES = 24 << 20
_BLOCK = 1 << 20


class SourceChanged(Exception):
    """The file is no longer the one that was pinned; it stays due."""


class Line:
    """One line of a source that holds a JSON object."""

    __slots__ = ("_kept", "_reading", "end", "offset")

    def __init__(self, reading: Reading, offset: int, end: int, kept: dict[str, Any] | None) -> None:
        self._reading = reading
        self._kept = kept
        self.offset = offset
        self.end = end

    def forget(self) -> None:
        self._kept = None

    @property
    def value(self) -> dict[str, Any]:
        """Ask once and keep what is needed: of a large source it is read again once the next line was asked for."""
        if self._kept is not None:
            return self._kept
        value: dict[str, Any] = canonical.parse(self._reading.bytes_at(self.offset, self.end))
        return value


@dataclass
class Reading:
    """One pass over a source. The provider says here what it skipped and what it holds back."""

    source: Pinned
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → lines (or parts of them) that make no row although somebody might expect one."""
    held: set[str] = field(default_factory=set)
    """Messages that are unfinished, by an id of the provider's choice: the source stays due because of them."""
    consumed: int = 0
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """The same of this import, as `wants` noted it; neighbours are one."""
    _with_them: list[tuple[int, int]] = field(default_factory=list)
    _asked: bool = False
    _apart: bool = True
    _file: BinaryIO | None = None
    _taken: Any = field(default_factory=hashlib.sha256)

    def __enter__(self) -> Reading:
        self._file = open_regular(self.source.path)
        found = os.fstat(self._file.fileno())
        if inode_of(found) != self.source.inode or found.st_size < self.source.size:
            self.close()
            raise SourceChanged("it was replaced or cut after it was found")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_new(self, offset: int, message: str | None = None) -> bool:
        """Whether no import has taken the line at the offset, of that message, yet."""
        source = self.source
        if offset >= source.consumed or message in source.held:
            return True
        place = bisect_right(source.left_out, (offset, source.size)) - 1
        return place >= 0 and offset < source.left_out[place][1]

    def wants(self, line: Line, time: str | None, *, new: bool = True) -> bool:
        """Whether a line that can make rows shall make them now: it is new, and the window holds its time.

        To be asked once for each such line, in the order of the file, with its time in the one written form. What the
        window leaves out is noted, so that a later import takes it and nothing else.
        """
        self._asked = True
        if new and not self.source.window.holds(time):
            self._leave_out(line.offset, line.end)
            return False
        self._apart = True
        return new

    def leave_out_too(self, offset: int) -> None:
        """A line that makes no row belongs to one that was left out, and is due together with it."""
        self._with_them.append((offset, offset + 1))

    def _leave_out(self, start: int, end: int) -> None:
        if self.left_out and (not self._apart or len(self.left_out) >= _MAX_RANGES):
            self.left_out[-1] = (self.left_out[-1][0], end)
        else:
            self.left_out.append((start, end))
        self._apart = False

    def settle_window(self) -> Window:
        """The window that the mark names: everything that was left out lies outside it; none where nothing was."""
        if not self._asked and self.source.window != Window():
            # The provider never asked: anything may have been left out.
            self.left_out = [(0, self.source.size)]
        self.left_out = _merged(self.left_out + self._with_them)
        return self.source.window if self.left_out else Window()

    def start_over_if_rewritten(self) -> None:
        """What earlier imports took must still stand there; else nothing is known about this source."""
        begun = self.source.consumed
        if begun and self._hash_of_prefix(begun) != self.source.prefix_hash:
            self.source = replace(self.source, consumed=0, prefix_hash="", held=frozenset(), left_out=(), ignored=())

    def lines(self) -> Iterator[Line]:
        """Every line that holds a JSON object, from the beginning of the source."""
        keep = self.source.size <= _KEPT_BYTES
        self._taken, self.consumed = hashlib.sha256(), 0
        for offset, raw in self._raw_lines():
            end = offset + len(raw)
            whole = raw.endswith(b"\n")
            value = self._parse(offset, raw, whole)
            if whole or value is not None:
                self._taken.update(raw)
                self.consumed = end
            if value is not None:
                line = Line(self, offset, end, value)
                yield line
                if not keep:
                    line.forget()

    def whole(self) -> bytes | None:
        """All of it, for sources that are one document; None if it is too large for that."""
        if self.source.size > MAX_LINE_BYTES:
            return None
        data = self.bytes_at(0, self.source.size)
        self._taken = hashlib.sha256(data)
        self.consumed = len(data)
        return data

    def bytes_at(self, start: int, end: int) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) != end - start:
            raise SourceChanged("it was cut while it was read")
        return data

    @property
    def taken_hash(self) -> str:
        """Of the bytes before `consumed`, as they were read: somebody may have written others over them since."""
        return str(self._taken.hexdigest())

    def _hash_of_prefix(self, end: int) -> str:
        digest = hashlib.sha256()
        for start in range(0, end, _BLOCK):
            digest.update(self.bytes_at(start, min(start + _BLOCK, end)))
        return digest.hexdigest()

    def _raw_lines(self) -> Iterator[tuple[int, bytes]]:
        """(offset, line) of the pinned bytes; a line that is too long is counted and passed over."""
        assert self._file is not None
        self._file.seek(0)
        offset, size = 0, self.source.size
        while offset < size:
            raw = self._read_line(min(MAX_LINE_BYTES, size - offset))
            if len(raw) < MAX_LINE_BYTES or raw.endswith(b"\n"):
                yield offset, raw
                offset += len(raw)
            else:
                self._skip(offset, "line_too_long")
                offset = self._pass_over(raw, offset)

    def _pass_over(self, raw: bytes, offset: int) -> int:
        """Reads on to the end of a long line, a piece at a time: where the next one begins."""
        passed = self._taken.copy()
        while True:
            passed.update(raw)
            offset += len(raw)
            if raw.endswith(b"\n"):
                self._taken, self.consumed = passed, offset
                return offset
            if offset >= self.source.size:
                return offset
            raw = self._read_line(min(_BLOCK, self.source.size - offset))

    def _read_line(self, most: int) -> bytes:
        assert self._file is not None
        raw = self._file.readline(most)
        if not raw:
            raise SourceChanged("it was cut while it was read")
        return raw

    def _parse(self, offset: int, raw: bytes, whole: bool) -> dict[str, Any] | None:
        if raw.isspace():
            return None
        try:
            value = canonical.parse(raw)
        except (ValueError, RecursionError) as error:
            self._skip(offset, _why_not_json(raw, error) if whole else "half_line")
            return None
        if not isinstance(value, dict):
            self._skip(offset, "not_an_object" if whole else "half_line")
            return None
        return value

    def _skip(self, offset: int, why: str) -> None:
        """Counts a line, unless an earlier import counted it."""
        if self.is_new(offset):
            self.skipped[why] += 1


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _why_not_json(raw: bytes, error: Exception) -> str:
    if b"\0" in raw:
        return "nul_bytes"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return "nested_too_deeply" if isinstance(error, RecursionError) or "depth" in str(error) else "not_json"
