"""The spool, copied while producers, flushes and a server go on: what waits, what was refused, what just came in.

Files move from `active` and `incoming` to `sealed` at any moment. They are listed in this order and copied; where one
has gone meanwhile, it is looked for again, so that none is missed. Nobody may flush while the last copy is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypaware.home import Home
from hypaware.maintain.copying import Copier
from hypaware.spool import repair, segments

_BELOW = "spool/"
_PASSED_THROUGH = ("active", "incoming")
# Producers seal a second after their first row.
_SEAL_SECONDS = 3.0


def seal(home: Home) -> None:
    """Orphans are sealed, and producers given a moment to seal theirs; what is held for longer is copied as it is."""
    for dataset in segments.datasets_with_spool(home):
        repair.wait_until_sealed(segments.folder(home, dataset), _SEAL_SECONDS)


def copy(home: Home, copier: Copier) -> None:
    """After it, the copy holds what the spool holds."""
    while True:
        listed = dict(_listed(home))
        try:
            for name, path in listed.items():
                copier.copy(path, name, whole_lines=path.parent.name == "active")
        except FileNotFoundError:
            continue
        break
    copier.keep_only(_BELOW, _once(listed))


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
        others = sorted(path.name for path in (home.spool / dataset).iterdir() if path.name not in _PASSED_THROUGH)
        for folder in (*_PASSED_THROUGH, *others):
            for path in sorted((home.spool / dataset / folder).glob(f"*{segments.SUFFIX}")):
                if not path.name.startswith("."):
                    yield f"{_BELOW}{dataset}/{folder}/{path.name}", path


def _once(listed: dict[str, Path]) -> Iterator[str]:
    """A file that was listed as active or incoming, and is sealed by now, counts once."""
    sealed = {_stem(path) for path in listed.values() if path.parent.name == "sealed"}
    for name, path in listed.items():
        if path.parent.name not in _PASSED_THROUGH or _stem(path) not in sealed:
            yield name


def _stem(path: Path) -> tuple[Path, str]:
    return path.parent.parent, path.name.partition(".")[0]
