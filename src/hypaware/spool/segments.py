"""Names and folders of segments.

`spool/<dataset>/active/<time>-<random>.jsonl` while its producer holds it (by flock), then
`spool/<dataset>/sealed/<time>-<random>.<rows>.jsonl`. Names sort by the time of creation; those of one process are
always in its order. Rows that may wait for a better source of the same parts are in segments of their own, with
`-waits` after the random part.

@ref spool#waiting
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypaware import durable
from hypaware.home import Home

SUFFIX = ".jsonl"
NEW_PREFIX = ".new-"

_WAITS = "-waits"
PATIENCE_SECONDS = 600.0
"""How long rows wait that may: long enough for a transcript to be imported."""

_secured: set[Path] = set()
_naming = threading.Lock()
_last_millisecond = 0


@dataclass(frozen=True)
class Folder:
    """The spool of one dataset."""

    dataset: str
    path: Path

    @property
    def active(self) -> Path:
        return self.path / "active"

    @property
    def sealed(self) -> Path:
        return self.path / "sealed"

    @property
    def rejected(self) -> Path:
        return self.path / "rejected"

    def create(self) -> None:
        for folder in (self.active, self.sealed, self.rejected):
            durable.make_dir(folder)
        # Whoever made them may have been killed before their names were durable; each process makes sure once.
        if self.path not in _secured:
            for holder in (self.path, self.path.parent, self.path.parent.parent):
                durable.fsync_dir(holder)
            _secured.add(self.path)


@dataclass(frozen=True)
class Segment:
    """A sealed segment."""

    dataset: str
    name: str
    path: Path
    rows: int
    bytes: int

    def waits(self, now: float) -> bool:
        """Whether a flush that is in no hurry leaves it for later. A clock that went back ends the waiting."""
        born = self.name.partition("-")[0]
        return may_wait(self.name) and born.isdecimal() and 0 <= now - int(born) / 1000 < PATIENCE_SECONDS


def may_wait(name: str) -> bool:
    """Whether it holds rows that may wait for a better source, by its name."""
    return name.partition(".")[0].endswith(_WAITS)


def folder(home: Home, dataset: str) -> Folder:
    return Folder(dataset, home.spool / dataset)


def datasets_with_spool(home: Home) -> list[str]:
    return sorted(path.name for path in home.spool.iterdir() if path.is_dir()) if home.spool.is_dir() else []


def new_name(*, waits: bool = False) -> str:
    """Later than every name that this process has given: two segments of one millisecond keep their order."""
    global _last_millisecond
    with _naming:
        _last_millisecond = max(time.time_ns() // 1_000_000, _last_millisecond + 1)
        return f"{_last_millisecond:013d}-{secrets.token_hex(6)}{_WAITS if waits else ''}"


def sealed_name(name: str, rows: int) -> str:
    return f"{name}.{rows}{SUFFIX}"


def active_files(where: Folder) -> list[Path]:
    return _listed(where.active)


def sealed_segments(where: Folder) -> list[Segment]:
    """Oldest first."""
    return list(_segments(where))


def _segments(where: Folder) -> Iterator[Segment]:
    for path in _listed(where.sealed):
        name = path.name.removesuffix(SUFFIX)
        rows = name.partition(".")[2]
        try:
            size = path.stat().st_size
            counted = int(rows) if rows.isdecimal() else count_lines(path)
        except FileNotFoundError:
            continue
        yield Segment(where.dataset, name, path, counted, size)


def count_lines(path: Path) -> int:
    """Also a last one without its newline."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
