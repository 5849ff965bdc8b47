"""Reading one pinned source: exactly the bytes that were there when it was pinned, line by line, within bounds.

A line is taken whole or not at all. The last one may lack its newline: it counts if it is complete JSON, else it is
left for the next import. Large sources are not kept in memory: a line's value is then parsed again when it is asked
for.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from hypaware.model import canonical

MAX_LINE_BYTES = 64 << 20
_KEPT_BYTES = 24 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Window:
    """From and to, inclusive, as UTC text of the one written form; None is open. What has no time is inside."""

    since: str | None = None
    until: str | None = None

    def holds(self, time: str | None) -> bool:
        if time is None:
            return True
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)

    def covers(self, other: Window) -> bool:
        lower = self.since is None or (other.since is not None and self.since <= other.since)
        upper = self.until is None or (other.until is not None and self.until >= other.until)
        return lower and upper


@dataclass(frozen=True)
class Pinned:
    """A source as it was when the import began, and how much of it earlier imports have taken."""

    path: Path
    inode: int
    size: int
    mtime_ns: int
    consumed: int = 0
    """Lines that begin before this offset were imported by an earlier run, but for those of `held`."""
    prefix_hash: str = ""
    """Of the bytes before `consumed`."""
    held: frozenset[str] = frozenset()
    """Messages that the earlier import left for later because they were unfinished."""
    quiet: bool = True
    """Nobody had written to it for a while: what looks unfinished will not be finished."""
    window: Window = Window()
    window_before: Window = Window()
    """Under which the bytes before `consumed` were read."""


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

    @property
    def value(self) -> dict[str, Any]:
        """Ask once and keep what is needed: of a large source it is read again each time."""
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
    left_out: int | None = None
    """Messages outside the window; None if the provider never asked `in_window`, so that nobody knows."""
    _file: BinaryIO | None = None

    def __enter__(self) -> Reading:
        self._file = open(self.source.path, "rb")
        found = os.fstat(self._file.fileno())
        if found.st_ino != self.source.inode or found.st_size < self.source.size:
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
        """Whether the line at the offset, of that message, was not imported before."""
        return offset >= self.source.consumed or message in self.source.held

    def in_window(self, time: str | None) -> bool:
        """Whether the window holds a message of this time (UTC, in the one written form); counts those it does not."""
        holds = self.source.window.holds(time)
        self.left_out = (self.left_out or 0) + (not holds)
        return holds

    def window_taken(self) -> Window:
        """Under which window the source counts as read: one that left nothing out changes nothing."""
        return self.source.window_before if self.left_out == 0 else self.source.window

    def start_over_if_rewritten(self) -> None:
        """What earlier imports took must still stand there; else nothing is known about this source."""
        begun = self.source.consumed
        if begun and self.hash_of_prefix(begun) != self.source.prefix_hash:
            self.source = replace(self.source, consumed=0, prefix_hash="", held=frozenset(), window_before=Window())

    def lines(self) -> Iterator[Line]:
        """Every line that holds a JSON object, from the beginning of the source."""
        keep = self.source.size <= _KEPT_BYTES
        for offset, raw in self._raw_lines():
            end = offset + len(raw)
            whole = raw.endswith(b"\n")
            value = self._parse(offset, raw, whole)
            if whole or value is not None:
                self.consumed = end
            if value is not None:
                yield Line(self, offset, end, value if keep else None)

    def whole(self) -> bytes | None:
        """All of it, for sources that are one document; None if it is too large for that."""
        if self.source.size > MAX_LINE_BYTES:
            return None
        return self.bytes_at(0, self.source.size)

    def bytes_at(self, start: int, end: int) -> bytes:
        assert self._file is not None
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) != end - start:
            raise SourceChanged("it was cut while it was read")
        return data

    def hash_of_prefix(self, end: int) -> str:
        """Of the first bytes: whether what was imported before is still what stands there."""
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
            raw = self._file.readline(min(MAX_LINE_BYTES, size - offset))
            if not raw:
                raise SourceChanged("it was cut while it was read")
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                self._skip(offset, "line_too_long")
                length = self._pass_over(size - offset - len(raw))
                ended = length >= 0
                offset += len(raw) + abs(length)
                if ended:
                    self.consumed = offset
                continue
            yield offset, raw
            offset += len(raw)

    def _pass_over(self, left: int) -> int:
        """How many bytes the rest of a long line has; negative if the pinned bytes end before it does."""
        assert self._file is not None
        passed = 0
        while passed < left:
            raw = self._file.readline(min(_BLOCK, left - passed))
            if not raw:
                raise SourceChanged("it was cut while it was read")
            passed += len(raw)
            if raw.endswith(b"\n"):
                return passed
        return -passed

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


def _why_not_json(raw: bytes, error: Exception) -> str:
    if b"\0" in raw:
        return "nul_bytes"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return "nested_too_deeply" if isinstance(error, RecursionError) or "depth" in str(error) else "not_json"
