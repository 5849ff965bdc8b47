"""`.hypignore` files: the recording policy of a folder.

The file holds one word: `full`, `local-only` or `ignore`; `#` starts a comment. A file that is empty, holds anything
else, cannot be read or is not a regular file means `ignore`: its author wanted privacy, and the strict reading is safe.
The nearest file counts, searching upward from the working directory, so a folder can be stricter or more open than the
one that contains it.

For a missing folder the search uses the remembered rules (`folder_memory`) and the parent folders that still exist. A
path that contains symbolic links is searched twice, as written and resolved, and the stricter result counts. The
content of a file is cached until the file changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from hypaware.home.durable_files import open_regular_file
from hypaware.model.privacy_class import PrivacyClass

FILE_NAME = ".hypignore"
_MAX_BYTES = 1 << 16


class HypignoreRule(NamedTuple):
    privacy_class: PrivacyClass
    path: Path
    evidence: Literal["found", "remembered", "unknown"] = "found"
    """The file exists; it existed once; its existence cannot be checked."""


RecallRule = Callable[[Path], PrivacyClass | None]
"""Maps a folder without a file to its remembered class; None if there is none."""


def find_rules(cwd: str, recall: RecallRule = lambda _folder: None) -> list[HypignoreRule]:
    """Return the rule of the nearest file for each search path that has one. The path must be absolute."""
    written = os.path.normpath(cwd)
    paths = dict.fromkeys((written, os.path.realpath(written)))
    return [rule for path in paths if (rule := _find_upward(Path(path), recall))]


def _find_upward(folder: Path, recall: RecallRule) -> HypignoreRule | None:
    for each in (folder, *folder.parents):
        path = each / FILE_NAME
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            # A dangling link expresses the same intent as a file.
            if path.is_symlink():
                return HypignoreRule(PrivacyClass.IGNORE, path)
            if (remembered := recall(each)) is not None:
                return HypignoreRule(remembered, path, "remembered")
            continue
        except (OSError, ValueError):
            return HypignoreRule(PrivacyClass.IGNORE, path, "unknown")
        return HypignoreRule(_read_file(path, status.st_ino, status.st_mtime_ns, status.st_size), path)
    return None


@lru_cache(maxsize=1024)
def _read_file(path: Path, _inode: int, _mtime_ns: int, _size: int) -> PrivacyClass:
    try:
        with open_regular_file(path) as file:
            return parse_hypignore(file.read(_MAX_BYTES + 1))
    except OSError:
        return PrivacyClass.IGNORE


def parse_hypignore(content: bytes) -> PrivacyClass:
    lines = content.decode("utf-8-sig", "replace").splitlines() if len(content) <= _MAX_BYTES else ["?"]
    words = [word for line in lines for word in line.partition("#")[0].split()]
    return PrivacyClass.parse(words[0]) if len(words) == 1 else PrivacyClass.IGNORE
