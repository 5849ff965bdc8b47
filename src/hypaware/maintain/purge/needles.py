"""Which of some words stand in a file; of databases, another process looks.

Whoever closes any handle of a file gives up every lock that his process has on it (POSIX), SQLite's among them: a
plain look into `state.db-shm` would make other processes believe that nobody here has the database open, and the last
of them to leave would take its log away under us.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import orjson

from hypaware.maintain.purge import unpacking

_DATABASE = ".db"


def is_database(path: Path) -> bool:
    """A database, its log, its index of the log, or a journal."""
    return path.suffix.startswith(_DATABASE)


def standing_in(path: Path, needles: Iterable[bytes]) -> int:
    """How many of them. Raises `FileNotFoundError` if it is gone."""
    return len({needle for content in unpacking.contents(path) for needle in needles if _stands_in(content, needle)})


def standing_in_databases(paths: Sequence[Path], needles: Sequence[bytes]) -> Mapping[Path, int]:
    """The same for many, by a process of its own; those that are gone by then are left out."""
    if not paths:
        return {}
    asked = orjson.dumps([[str(path) for path in paths], [needle.decode() for needle in needles]])
    done = subprocess.run([sys.executable, "-m", __name__], input=asked, capture_output=True, check=False)
    if done.returncode != 0:
        raise OSError(0, f"another process could not look: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return {Path(path): count for path, count in orjson.loads(done.stdout).items()}


def _stands_in(content: bytes, needle: bytes) -> bool:
    """As a whole word: `message-5` does not stand in `message-57`."""
    place = content.find(needle)
    while place >= 0:
        after = content[place + len(needle) : place + len(needle) + 1]
        if not (after.isalnum() or after in (b"-", b"_")):
            return True
        place = content.find(needle, place + 1)
    return False


def _main() -> None:
    paths, needles = orjson.loads(sys.stdin.buffer.read())
    found = {}
    for path in paths:
        try:
            found[path] = standing_in(Path(path), [needle.encode() for needle in needles])
        except FileNotFoundError:
            continue
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    _main()
