"""What lies where in a cache of the original. It is only ever read.

    <cache>/datasets/<dataset>/source=<source>/cursor.json      names the live table: {"tableDir": "table", …}
    <cache>/datasets/<dataset>/source=<source>/table*/          an Iceberg table
    <cache>/datasets/<dataset>/client=…/date=…/epoch=<n>/       the same, as older versions had it
    <cache>/datasets/<dataset>/<any>/_hypaware_spool/           active.jsonl, flush-*.jsonl: rows that wait

Beside the cache lies the state of the installation (plugins/, sinks/), and above that its config. `.retired` holds
what was moved elsewhere. A spool file that was flushed in part has `<file>.progress.json` with a `byteOffset`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hypaware.errors import HypError
from hypaware.takeover import table
from hypaware.takeover.table import CacheDamaged

_CURSOR = "cursor.json"
_SPOOL = "_hypaware_spool"
_RETIRED = ".retired"
_TABLE = "table"
_LIKE_A_TABLE = ("table", "epoch=")


@dataclass(frozen=True)
class Partition:
    """A logical partition of a dataset: one live table, and others that are done with."""

    dataset: str
    segments: tuple[str, ...]
    """Its folders below the dataset's."""
    path: Path

    @property
    def name(self) -> str:
        return "/".join(self.segments)

    def live_table(self) -> Path:
        """The table that the cursor names."""
        if not (self.path / _CURSOR).exists():
            return self.path
        cursor = self._cursor()
        named = cursor.get("tableDir")
        if named is None and cursor.get("layout") == "source-table":
            named = _TABLE
        if named is None:
            by_epoch = f"epoch={cursor.get('epoch', 0)}"
            named = by_epoch if (self.path / by_epoch).is_dir() else _TABLE
        if not isinstance(named, str) or Path(named).name != named or named in ("", ".", ".."):
            raise CacheDamaged(f"{self.path / _CURSOR} names {named!r}, which is no folder beside it")
        found = self.path / named
        if found.is_symlink() or not found.is_dir():
            raise CacheDamaged(f"{self.path / _CURSOR} names the table {named}, which is not there")
        return found

    def _cursor(self) -> dict[str, Any]:
        path = self.path / _CURSOR
        try:
            held = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CacheDamaged(f"{path} cannot be read: {error}") from error
        if not isinstance(held, dict):
            raise CacheDamaged(f"{path} is no cursor")
        return held


@dataclass(frozen=True)
class SpoolFile:
    """Rows that wait, pinned: bytes from `start` to `size` of this inode."""

    dataset: str
    path: Path
    name: str
    """Its path within the cache."""
    start: int
    size: int
    inode: int
    mtime_ns: int


@dataclass
class Cache:
    asked: Path
    root: Path
    partitions: list[Partition] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    not_followed: list[Path] = field(default_factory=list)
    """Links in the place of folders."""

    @property
    def datasets(self) -> list[str]:
        return sorted({each.dataset for each in self.partitions} | {each.dataset for each in self.spools})

    @property
    def state_roots(self) -> list[Path]:
        """Where the state of the installation can lie: in the cache itself, or beside it."""
        return [self.root, self.root.parent] if self.root.name == "cache" else [self.root]

    @property
    def configs(self) -> list[Path]:
        """Where its config can lie, of the installation first."""
        roots = [*self.state_roots, self.root.parent.parent] if self.root.name == "cache" else self.state_roots
        seeds = [path for root in self.state_roots for path in sorted((root / "config-control").glob("*.json"))]
        return [path for root in roots if (path := root / "hypaware-config.json").is_file()] + seeds


def find(asked: Path) -> Cache:
    """The cache in a folder, which may also be the installation's own (`~/.hyp`), with everything in it."""
    for root in (asked, asked / "cache", asked / "hypaware" / "cache"):
        if (root / "datasets").is_dir():
            return _listed(Cache(asked, root))
    what = "there is no such folder" if not asked.is_dir() else "it has no folder `datasets`"
    raise HypError(
        f"{asked} is no cache of HypAware: {what}. Name the folder that holds `datasets`, often ~/.hyp/hypaware/cache",
        kind="not_a_cache",
    )


def _listed(cache: Cache) -> Cache:
    """Spools before tables: what is flushed meanwhile is then met twice, and known by its key; never missed."""
    try:
        folders = list(_folders(cache, cache.root / "datasets", ()))
        for segments, folder in folders:
            if segments[-1] == _SPOOL:
                cache.spools += _spooled(cache, segments[0], folder)
        for segments, folder in folders:
            if segments[-1] != _SPOOL and len(segments) > 1 and _is_partition(folder):
                cache.partitions.append(Partition(segments[0], segments[1:], folder))
            elif len(segments) == 1 and _is_partition(folder):
                cache.partitions.append(Partition(segments[0], (), folder))
    except OSError as error:
        raise CacheDamaged(f"the cache {cache.root} cannot be looked through: {error}") from error
    return cache


def _folders(cache: Cache, folder: Path, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        path = folder / entry.name
        if entry.is_symlink():
            if entry.is_dir():
                cache.not_followed.append(path)
        elif entry.is_dir() and entry.name != _RETIRED and not (above and _is_table_name(entry.name)):
            segments = (*above, entry.name)
            yield segments, path
            if entry.name != _SPOOL:
                yield from _folders(cache, path, segments)


def _is_table_name(name: str) -> bool:
    return name.startswith(_LIKE_A_TABLE) or name in ("metadata", "data")


def _is_partition(folder: Path) -> bool:
    return (folder / _CURSOR).exists() or table.is_table(folder)


def _spooled(cache: Cache, dataset: str, folder: Path) -> Iterator[SpoolFile]:
    """The oldest first; the active one is the youngest."""
    flushing = sorted(path for path in folder.glob("flush-*.jsonl") if path.is_file())
    active = [path for path in (folder / "active.jsonl",) if path.is_file()]
    for path in [*flushing, *active]:
        about = path.stat()
        start = min(_progress(path), about.st_size)
        if start < about.st_size:
            name = path.relative_to(cache.root).as_posix()
            yield SpoolFile(dataset, path, name, start, about.st_size, about.st_ino, about.st_mtime_ns)


def _progress(path: Path) -> int:
    """How much of it was flushed. Where nobody can tell, nothing: rows that were are known by their keys."""
    try:
        offset = json.loads(path.with_name(f"{path.name}.progress.json").read_bytes())["byteOffset"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return int(offset) if isinstance(offset, int | float) and 0 <= offset < 2**63 else 0


def hash_of(file: BinaryIO, length: int) -> hashlib._Hash:
    """Of the bytes at its beginning; it stands behind them then."""
    file.seek(0)
    found = hashlib.sha256()
    left = length
    while left > 0 and (some := file.read(min(left, 1 << 20))):
        found.update(some)
        left -= len(some)
    return found
