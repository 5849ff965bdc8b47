"""Session-context records: where a session ran, as the hooks that attach installs noted it.

`<HYP_HOME>/clients/claude/session-context.jsonl`, lines `{session_id, cwd, git_branch, git_remote, head_sha,
repo_root, at}`, bounded to 1 MiB by who writes it. The first record of a session counts, as with a transcript's lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from hypaware.backfill.provider import Environment
from hypaware.clients.git import without_userinfo
from hypaware.regular import open_regular

Record = Mapping[str, str]
_FIELDS = ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")
_MAX_BYTES = 4 << 20


def records(environment: Environment) -> Mapping[str, Record]:
    """Session id → its record."""
    home = Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp")
    path = home / "clients" / "claude" / "session-context.jsonl"
    try:
        about = path.stat()
    except OSError:
        return {}
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, Record]:
    """Kept while the file stays as it is: every source asks for it."""
    found: dict[str, Record] = {}
    try:
        with open_regular(path) as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return found
    for line in lines:
        value = _parsed(line)
        session = value.get("session_id")
        if isinstance(session, str) and session not in found:
            record = {name: text for name in _FIELDS if isinstance(text := value.get(name), str) and text}
            if "git_remote" in record:
                record["git_remote"] = without_userinfo(record["git_remote"])
            found[session] = record
    return found


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
