"""How far each sink of the original had delivered each partition, as its files say.

    <state>/plugins/<plugin>/sink-instances/<sink>/watermarks/<dataset>/<partition>.json
    {"v": 1, "continuation": {"v": 1, "seq": "1481"}, "exportedRowCount": …, "updatedAt": …}

`<partition>` is the partition's path below its dataset, with every sign but letters, digits and `._=,-` as `_`. Older
versions kept one folder for all sinks of a plugin; its last name then stands for the sink. A watermark is written after
the rows have arrived, so everything up to it has; rows without a sequence go with the first delivery, so they have too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypaware.takeover.cache import Cache, Partition

UNNAMED = "unnamed"
_WATERMARKS = "watermarks"
_PLACES = ("plugins", "sinks", _WATERMARKS)
_BEFORE_THE_NAME = ("sink-instances", "sinks")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,-]")
_DEEPEST = 6


@dataclass(frozen=True)
class Watermark:
    """Rows of the partition with a sequence up to `seq`, and those without one, have arrived."""

    sink: str
    dataset: str
    partition: str
    path: Path
    seq: int | None
    """None where the file cannot be understood."""

    def is_of(self, partition: Partition) -> bool:
        return self.dataset == _safe(partition.dataset) and self.partition == key_of(partition)


def key_of(partition: Partition) -> str:
    return "/".join(map(_safe, partition.segments)) or "_partition"


def found_in(cache: Cache, also: Iterable[Path]) -> list[Watermark]:
    """Those of the installation that the cache belongs to, and those in folders that the user named."""
    seen: dict[Path, Watermark] = {}
    for root in (*cache.state_roots, *also):
        for folder in [root / place for place in _PLACES]:
            for held in _folders(folder, _DEEPEST):
                for mark in _read(held, root):
                    seen.setdefault(mark.path.resolve(), mark)
    return sorted(seen.values(), key=lambda mark: (mark.sink, mark.dataset, mark.partition))


def outboxes(cache: Cache, also: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """(sink, deliveries that failed and wait to be tried again)"""
    for root in (*cache.state_roots, *also):
        for folder in sorted((root / "sinks").glob("*/outbox")):
            if waiting := len(list(folder.glob("*.json"))):
                yield folder.parent.name, waiting


def _folders(folder: Path, deepest: int) -> Iterator[Path]:
    """Folders of the name, not through links."""
    if folder.is_symlink() or not folder.is_dir():
        return
    if folder.name == _WATERMARKS:
        yield folder
    elif deepest:
        for entry in sorted(os.scandir(folder), key=lambda found: found.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _folders(folder / entry.name, deepest - 1)


def _read(folder: Path, root: Path) -> Iterator[Watermark]:
    sink = _sink_of(folder.relative_to(root).parts[:-1])
    for path in sorted(folder.rglob("*.json")):
        dataset, *segments = path.relative_to(folder).with_suffix("").parts
        if segments and path.is_file():
            yield Watermark(sink, dataset, "/".join(segments), path, _seq(path))


def _sink_of(parts: tuple[str, ...]) -> str:
    for before in _BEFORE_THE_NAME:
        if before in parts[:-1]:
            return parts[parts.index(before) + 1]
    return parts[-1] if parts else UNNAMED


def _seq(path: Path) -> int | None:
    try:
        held = json.loads(path.read_bytes())["continuation"]
        seq = held["seq"]
        if held["v"] != 1 or isinstance(seq, bool) or not re.fullmatch(r"\d{1,19}", str(seq)):
            return None
        return int(seq)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _safe(segment: str) -> str:
    return _UNSAFE.sub("_", segment)
