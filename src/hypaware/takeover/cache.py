"""The layout of a cache of the original. The cache is only read.

    <cache>/datasets/<dataset>/source=<source>/cursor.json      names the live table: {"tableDir": "table", …}
    <cache>/datasets/<dataset>/source=<source>/table*/          an Iceberg table
    <cache>/datasets/<dataset>/client=…/date=…/epoch=<n>/       an Iceberg table, written by older versions
    <cache>/datasets/<dataset>/<any>/_hypaware_spool/           active.jsonl, flush-*.jsonl: rows not yet flushed

The state of the installation (plugins/, sinks/) is next to the cache, and its config is one directory above. `.retired`
holds data that was moved elsewhere. A partly flushed spool file has a `<file>.progress.json` with a `byteOffset`.
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
_TABLE_PREFIXES = ("table", "epoch=")


@dataclass(frozen=True)
class Partition:
    """A logical partition of a dataset: one live table, and older tables that are no longer used."""

    dataset: str
    segments: tuple[str, ...]
    """Its directories below the dataset's."""
    path: Path

    @property
    def name(self) -> str:
        return "/".join(self.segments)

    def live_table(self) -> Path:
        """Return the table that the cursor names."""
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
            raise CacheDamaged(f"{self.path / _CURSOR} names {named!r}, which is not a directory next to it")
        found = self.path / named
        if found.is_symlink() or not found.is_dir():
            raise CacheDamaged(f"{self.path / _CURSOR} names the table {named}, which does not exist")
        return found

    def _cursor(self) -> dict[str, Any]:
        path = self.path / _CURSOR
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CacheDamaged(f"cannot read {path}: {error}") from error
        if not isinstance(document, dict):
            raise CacheDamaged(f"{path} is not a cursor")
        return document


@dataclass(frozen=True)
class SpoolFile:
    """Rows not yet flushed: the bytes from `start` to `size` of this inode."""

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
    requested: Path
    root: Path
    partitions: list[Partition] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    not_followed: list[Path] = field(default_factory=list)
    """Links in place of directories."""

    @property
    def datasets(self) -> list[str]:
        return sorted({each.dataset for each in self.partitions} | {each.dataset for each in self.spools})

    @property
    def state_roots(self) -> list[Path]:
        """Where the state of the installation can be: in the cache itself or next to it."""
        return [self.root, self.root.parent] if self.root.name == "cache" else [self.root]

    @property
    def configs(self) -> list[Path]:
        """Where its config can be, that of the installation first."""
        roots = [*self.state_roots, self.root.parent.parent] if self.root.name == "cache" else self.state_roots
        seeds = [path for root in self.state_roots for path in sorted((root / "config-control").glob("*.json"))]
        return [path for root in roots if (path := root / "hypaware-config.json").is_file()] + seeds


def find(requested: Path) -> Cache:
    """Find the cache in a directory, which may also be the installation's own (`~/.hyp`), and list its contents."""
    for root in (requested, requested / "cache", requested / "hypaware" / "cache"):
        if (root / "datasets").is_dir():
            return _list_contents(Cache(requested, root))
    problem = "the directory does not exist" if not requested.is_dir() else "it has no directory `datasets`"
    raise HypError(
        f"{requested} is not a cache of HypAware: {problem}. Pass the directory that holds `datasets`, often "
        "~/.hyp/hypaware/cache",
        kind="not_a_cache",
    )


def _list_contents(cache: Cache) -> Cache:
    """List spools before tables: a row that is flushed in between is found twice and recognised by its key, never
    missed."""
    try:
        folders = list(_folders(cache, cache.root / "datasets", ()))
        for segments, folder in folders:
            if segments[-1] == _SPOOL:
                cache.spools += _spool_files(cache, segments[0], folder)
        for segments, folder in folders:
            if segments[-1] != _SPOOL and len(segments) > 1 and _is_partition(folder):
                cache.partitions.append(Partition(segments[0], segments[1:], folder))
            elif len(segments) == 1 and _is_partition(folder):
                cache.partitions.append(Partition(segments[0], (), folder))
    except OSError as error:
        raise CacheDamaged(f"cannot list the cache {cache.root}: {error}") from error
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
    return name.startswith(_TABLE_PREFIXES) or name in ("metadata", "data")


def _is_partition(folder: Path) -> bool:
    return (folder / _CURSOR).exists() or table.is_table(folder)


def _spool_files(cache: Cache, dataset: str, folder: Path) -> Iterator[SpoolFile]:
    """Yield the spool files, the oldest first; the active one is the newest."""
    flushing = sorted(path for path in folder.glob("flush-*.jsonl") if path.is_file())
    active = [path for path in (folder / "active.jsonl",) if path.is_file()]
    for path in [*flushing, *active]:
        status = path.stat()
        start = min(_progress(path), status.st_size)
        if start < status.st_size:
            name = path.relative_to(cache.root).as_posix()
            yield SpoolFile(dataset, path, name, start, status.st_size, status.st_ino, status.st_mtime_ns)


def _progress(path: Path) -> int:
    """Return how many bytes were flushed; 0 if unknown, because flushed rows are recognised by their keys."""
    try:
        offset = json.loads(path.with_name(f"{path.name}.progress.json").read_bytes())["byteOffset"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return int(offset) if isinstance(offset, int | float) and 0 <= offset < 2**63 else 0


def hash_of(file: BinaryIO, length: int) -> hashlib._Hash:
    """Hash the first `length` bytes and leave the file position after them."""
    file.seek(0)
    found = hashlib.sha256()
    left = length
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        found.update(block)
        left -= len(block)
    return found
