"""Search for words in files; databases are searched by another process.

Closing any handle of a file releases every POSIX lock that the process holds on it, including SQLite's. If this process
read `state.db-shm`, other processes would believe that it no longer has the database open, and the last of them to
close it would delete the log that is still in use here.
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
    """Return whether the file is a database, its write-ahead log, its shared-memory index, or a journal."""
    return path.suffix.startswith(_DATABASE)


def standing_in(path: Path, needles: Iterable[bytes]) -> int:
    """Return how many of the words occur in the file. Raise `FileNotFoundError` if it is gone."""
    return len({needle for content in unpacking.contents(path) for needle in needles if _contains(content, needle)})


def standing_in_databases(paths: Sequence[Path], needles: Sequence[bytes]) -> Mapping[Path, int]:
    """Return the counts for many files, from a process of its own; files that are gone by then are left out."""
    if not paths:
        return {}
    request = orjson.dumps([[str(path) for path in paths], [needle.decode() for needle in needles]])
    process = subprocess.run([sys.executable, "-m", __name__], input=request, capture_output=True, check=False)
    if process.returncode != 0:
        raise OSError(0, f"the search process failed: {process.stderr.decode(errors='replace').strip()[-300:]}")
    return {Path(path): count for path, count in orjson.loads(process.stdout).items()}


def _contains(content: bytes, needle: bytes) -> bool:
    """Search for a whole word: `message-57` does not contain `message-5`."""
    position = content.find(needle)
    while position >= 0:
        after = content[position + len(needle) : position + len(needle) + 1]
        if not (after.isalnum() or after in (b"-", b"_")):
            return True
        position = content.find(needle, position + 1)
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
