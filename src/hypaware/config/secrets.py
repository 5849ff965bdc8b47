"""Rejects secrets in the config, because config files end up in backups, bug reports and dotfile repositories.

Every key is checked, known or not, before any message is printed. No message contains the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hypaware.config.where import KeyPath

_SECRET_KEY = re.compile(
    r"(?:^|[_.\-])(?:token|password|passwd|passphrase|secret|api[_\-]?key|credentials?|authorization"
    r"|(?:secret|private)[_\-]?(?:access[_\-]?)?key|session[_\-]?token|account[_\-]?key)$",
    re.IGNORECASE,
)
# user:password@host, or a password in the query of an address.
_SECRET_IN_ADDRESS = re.compile(r"://[^/@\s]+:[^/@\s]+@|[?&;](?:password|token|secret)=[^&;\s]", re.IGNORECASE)

_FOLDERS = ("privacy", "folders")


def find(table: Mapping[str, Any]) -> tuple[KeyPath, str] | None:
    """Return the first key with a secret, and a message with the alternative."""
    for path, value in _leaves(table, ()):
        # These keys are paths, and a folder can have any name.
        if path[:-1] == _FOLDERS:
            continue
        name = next(part for part in reversed(path) if isinstance(part, str))
        if _SECRET_KEY.search(name):
            stem = name.replace("-", "_").replace(".", "_")
            return path, (
                f'the config must not contain secrets: store it in a file and set {stem}_file = "path", '
                f'or in an environment variable and set {stem}_env = "VARIABLE"'
            )
        if isinstance(value, str) and _SECRET_IN_ADDRESS.search(value):
            return path, "the address contains a password or token; use a *_file or *_env key instead"
    return None


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    else:
        yield path, value
