"""Claude Code's session-context records: where a session ran, as the attached hooks recorded it.

`<HYP_HOME>/clients/claude/session-context.jsonl`; the first record of a session counts, as with the lines of a
transcript.
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
    """Return the record of each session, by session id."""
    home = Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp")
    path = session_context.path_of(home, "claude")
    try:
        status = path.stat()
    except OSError:
        return {}
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, Record]:
    """Cached until the file changes: every source needs it."""
    found: dict[str, Record] = {}
    with suppress(OSError):
        for session, note in session_context.notes(path):
            if session not in found:
                record = session_context.facts_of(note)
                if "git_remote" in record:
                    record["git_remote"] = without_userinfo(record["git_remote"])
                found[session] = record
    return found
