"""Session-context records: where a session ran, as the hooks that attach installs noted it.

`<HYP_HOME>/clients/claude/session-context.jsonl`, lines `{session_id, cwd, git_branch, git_remote, head_sha,
repo_root, at}`, bounded to 1 MiB by who writes it. The first record of a session counts, as with a transcript's lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from hypaware import session_context
from hypaware.backfill.provider import Environment
from hypaware.clients.git import without_userinfo

Record = Mapping[str, str]


def records(environment: Environment) -> Mapping[str, Record]:
    """Session id → its record."""
    home = Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp")
    path = session_context.path_of(home, "claude")
    try:
        about = path.stat()
    except OSError:
        return {}
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, Record]:
    """Kept while the file stays as it is: every source asks for it."""
    found: dict[str, Record] = {}
    with suppress(OSError):
        for session, note in session_context.notes(path):
            if session not in found:
                record = session_context.facts_of(note)
                if "git_remote" in record:
                    record["git_remote"] = without_userinfo(record["git_remote"])
                found[session] = record
    return found
