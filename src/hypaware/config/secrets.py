"""Secrets never stand in the config: they end up in backups, bug reports and dotfile repositories.

The check goes through every key, known or not, before anything is shown: no message holds the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SECRET_KEY = re.compile(
    r"(?:^|[_.\-])(?:token|password|passwd|passphrase|secret|api[_\-]?key|credentials?|authorization"
    r"|(?:secret|private)[_\-]?(?:access[_\-]?)?key|session[_\-]?token|account[_\-]?key)$",
    re.IGNORECASE,
)
# user:password@host, or a password among an address's parameters.
_SECRET_IN_ADDRESS = re.compile(r"://[^/@\s]+:[^/@\s]+@|[?&;](?:password|token|secret)=[^&;\s]", re.IGNORECASE)

Path = tuple[str | int, ...]

_FOLDERS = ("privacy", "folders")


def find(table: Mapping[str, Any]) -> tuple[Path, str] | None:
    """The first key that holds a secret, and what to write instead."""
    for path, value in _leaves(table, ()):
        # Their keys are paths, and a folder may be called anything.
        if path[:-1] == _FOLDERS:
            continue
        name = next(part for part in reversed(path) if isinstance(part, str))
        if _SECRET_KEY.search(name):
            stem = name.replace("-", "_").replace(".", "_")
            return path, (
                f'a secret does not stand in the config: put it into a file and write {stem}_file = "path", '
                f'or into the environment and write {stem}_env = "VARIABLE"'
            )
        if isinstance(value, str) and _SECRET_IN_ADDRESS.search(value):
            return path, "the address holds a password or token; use a *_file or *_env key beside it"
    return None


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    else:
        yield path, value
