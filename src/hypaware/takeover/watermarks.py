"""The watermarks of the original: up to which sequence each of its sinks has delivered each partition.

    <state>/plugins/<plugin>/sink-instances/<sink>/watermarks/<dataset>/<partition>.json
    {"v": 1, "continuation": {"v": 1, "seq": "1481"}, "exportedRowCount": …, "updatedAt": …}

`<partition>` is the partition's path below its dataset, with every character except letters, digits and `._=,-`
replaced by `_`. Older versions kept one directory for all sinks of a plugin; the last name of its path is used as the
sink then. A watermark is written after its rows have arrived, so all rows up to it were delivered. Rows without a
sequence are part of the first delivery, so they were delivered too.
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
_SUBFOLDERS = ("plugins", "sinks", _WATERMARKS)
_PARENTS_OF_SINK = ("sink-instances", "sinks")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,-]")
_MAX_DEPTH = 6


@dataclass(frozen=True)
class Watermark:
    """Rows of the partition with a sequence up to `seq`, and rows without one, were delivered."""

    sink: str
    dataset: str
    partition: str
    path: Path
    seq: int | None
    """None if the file cannot be parsed."""

    def is_of(self, partition: Partition) -> bool:
        return self.dataset == _sanitise(partition.dataset) and self.partition == key_of(partition)


def key_of(partition: Partition) -> str:
    return "/".join(map(_sanitise, partition.segments)) or "_partition"


def found_in(cache: Cache, extra_roots: Iterable[Path]) -> list[Watermark]:
    """Return the watermarks of the cache's installation and those in directories that the user named."""
    by_path: dict[Path, Watermark] = {}
    for root in (*cache.state_roots, *extra_roots):
        for folder in [root / name for name in _SUBFOLDERS]:
            for document in _folders(folder, _MAX_DEPTH):
                for mark in _read(document, root):
                    by_path.setdefault(mark.path.resolve(), mark)
    return sorted(by_path.values(), key=lambda mark: (mark.sink, mark.dataset, mark.partition))


def outboxes(cache: Cache, extra_roots: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield (sink, failed deliveries that wait for a retry)."""
    for root in (*cache.state_roots, *extra_roots):
        for folder in sorted((root / "sinks").glob("*/outbox")):
            if count := len(list(folder.glob("*.json"))):
                yield folder.parent.name, count


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield directories named `watermarks`, without following links."""
    if folder.is_symlink() or not folder.is_dir():
        return
    if folder.name == _WATERMARKS:
        yield folder
    elif depth:
        for entry in sorted(os.scandir(folder), key=lambda found: found.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _folders(folder / entry.name, depth - 1)


def _read(folder: Path, root: Path) -> Iterator[Watermark]:
    sink = _sink_of(folder.relative_to(root).parts[:-1])
    for path in sorted(folder.rglob("*.json")):
        dataset, *segments = path.relative_to(folder).with_suffix("").parts
        if segments and path.is_file():
            yield Watermark(sink, dataset, "/".join(segments), path, _seq(path))


def _sink_of(parts: tuple[str, ...]) -> str:
    for parent in _PARENTS_OF_SINK:
        if parent in parts[:-1]:
            return parts[parts.index(parent) + 1]
    return parts[-1] if parts else UNNAMED


def _seq(path: Path) -> int | None:
    try:
        document = json.loads(path.read_bytes())["continuation"]
        seq = document["seq"]
        if document["v"] != 1 or isinstance(seq, bool) or not re.fullmatch(r"\d{1,19}", str(seq)):
            return None
        return int(seq)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sanitise(segment: str) -> str:
    return _UNSAFE.sub("_", segment)
