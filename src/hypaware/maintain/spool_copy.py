"""Copying the spool while producers, flushes and a server use it: segments, rejects, incoming batches.

Files move from `active` and `incoming` to `sealed` at any time. They are listed and copied in this order. If a file has
moved before it could be copied, the listing starts again, so that no file is missed. No flush may run while the last
copy is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypaware.home import Home
from hypaware.maintain.copying import Copier
from hypaware.spool import repair, segments

_BELOW = "spool/"
_TRANSIENT = ("active", "incoming")
# Producers seal a second after their first row.
_SEAL_SECONDS = 3.0


def seal(home: Home) -> None:
    """Seal orphaned segments and give producers time to seal theirs; segments still active are copied unsealed."""
    for dataset in segments.datasets_with_spool(home):
        repair.wait_until_sealed(segments.folder(home, dataset), _SEAL_SECONDS)


def copy(home: Home, copier: Copier) -> None:
    """Copy the spool. Afterwards the copy holds exactly the rows that the spool holds."""
    while True:
        files = dict(_listed(home))
        try:
            for name, path in files.items():
                copier.copy(path, name, whole_lines=path.parent.name == "active")
        except FileNotFoundError:
            continue
        break
    copier.prune(_BELOW, _once(files))


def size(home: Home) -> int:
    total = 0
    for _, path in _listed(home):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _listed(home: Home) -> Iterator[tuple[str, Path]]:
    for dataset in segments.datasets_with_spool(home):
        others = sorted(path.name for path in (home.spool / dataset).iterdir() if path.name not in _TRANSIENT)
        for folder in (*_TRANSIENT, *others):
            for path in sorted((home.spool / dataset / folder).glob(f"*{segments.SUFFIX}")):
                if not path.name.startswith("."):
                    yield f"{_BELOW}{dataset}/{folder}/{path.name}", path


def _once(files: dict[str, Path]) -> Iterator[str]:
    """Yield each file once: one listed as active or incoming that is sealed now counts as sealed."""
    sealed = {_stem(path) for path in files.values() if path.parent.name == "sealed"}
    for name, path in files.items():
        if path.parent.name not in _TRANSIENT or _stem(path) not in sealed:
            yield name


def _stem(path: Path) -> tuple[Path, str]:
    return path.parent.parent, path.name.partition(".")[0]
