"""`.hypignore`: a folder says itself how what happens in it is kept.

The file holds one word, `full`, `local-only` or `ignore`; `#` begins a comment. An empty file means ignore, and so does
one that holds anything else, cannot be read, or is no file: who put it there wanted something, and the careful reading
is the right one. The nearest one counts, going up from the folder of the work; so a folder may be open within one that
is not, and the other way round.

A folder that is gone is asked about through what is known of it (`seen_folders`) and those above it that are still
there. A path through a link is gone up both ways, as it is written and as it really lies, and the stricter answer
counts. What a file says is kept in memory for as long as it stays the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from hypaware.capture.privacy_class import PrivacyClass
from hypaware.regular import open_regular

NAME = ".hypignore"
_MOST_BYTES = 1 << 16


class Said(NamedTuple):
    privacy: PrivacyClass
    path: Path
    evidence: Literal["met", "past", "unsure"] = "met"
    """The file is there; it was there once; nobody can look whether it is."""


Was = Callable[[Path], PrivacyClass | None]
"""A folder without a file → what it is known to have been; None if that does not count."""


def found(cwd: str, was: Was = lambda _folder: None) -> list[Said]:
    """What the nearest file says, each way up that has one. The path must be absolute."""
    written = os.path.normpath(cwd)
    ways = dict.fromkeys((written, os.path.realpath(written)))
    return [said for path in ways if (said := _upward(Path(path), was))]


def _upward(folder: Path, was: Was) -> Said | None:
    for each in (folder, *folder.parents):
        path = each / NAME
        try:
            about = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            # A link to nowhere was put there by somebody too.
            if path.is_symlink():
                return Said(PrivacyClass.IGNORE, path)
            if (known := was(each)) is not None:
                return Said(known, path, "past")
            continue
        except (OSError, ValueError):
            return Said(PrivacyClass.IGNORE, path, "unsure")
        return Said(_read(path, about.st_ino, about.st_mtime_ns, about.st_size), path)
    return None


@lru_cache(maxsize=1024)
def _read(path: Path, _inode: int, _mtime_ns: int, _size: int) -> PrivacyClass:
    try:
        with open_regular(path) as file:
            return parse(file.read(_MOST_BYTES + 1))
    except OSError:
        return PrivacyClass.IGNORE


def parse(content: bytes) -> PrivacyClass:
    lines = content.decode("utf-8-sig", "replace").splitlines() if len(content) <= _MOST_BYTES else ["?"]
    words = [word for line in lines for word in line.partition("#")[0].split()]
    return PrivacyClass.named(words[0]) if len(words) == 1 else PrivacyClass.IGNORE
