"""Recorded sessions that must not leave this machine, found in the index by their folders and ids.

A session is withheld if any folder in which it was, or the session itself, is ignored or local-only. Rows of a session
quote each other, so it is withheld as a whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypaware import config
from hypaware.home import Home
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy

if TYPE_CHECKING:
    from sqlite3 import Connection


@dataclass(frozen=True)
class WithheldSessions:
    """The sessions that are not handed out."""

    numbers: frozenset[int]
    ids: frozenset[str]
    ignored: int
    local_only: int

    def describe(self) -> dict[str, Any]:
        if not self.numbers:
            return {}
        hint = (
            "" if not self.local_only else "; the user can allow local-only sessions with hyp mcp --include-local-only"
        )
        reason = f"their folder or the user marked them as private{hint}"
        return {"withheld_sessions": {"ignored": self.ignored, "local_only": self.local_only, "reason": reason}}


def find_withheld_sessions(home: Home, connection: Connection, *, include_local_only: bool) -> WithheldSessions:
    """Return the sessions whose folder, or which themselves, must not leave the machine.

    Raise HypError if the user's list of ignored sessions cannot be read.
    """
    policy = PrivacyPolicy.from_config(home, config.load(home).privacy)
    classes: dict[int, PrivacyClass] = {}

    def note(session: int, found: PrivacyClass) -> None:
        classes[session] = max(found, classes.get(session, PrivacyClass.FULL))

    folders = connection.execute(
        "SELECT id, name FROM names WHERE id IN (SELECT DISTINCT cwd FROM activity UNION SELECT cwd FROM sessions)"
    ).fetchall()
    for folder, path in folders:
        if found := policy.class_of(path, None):
            sessions = "SELECT session FROM activity WHERE cwd = :cwd UNION SELECT id FROM sessions WHERE cwd = :cwd"
            for (session,) in connection.execute(sessions, {"cwd": folder}):
                note(session, found)
    listed = list(ignored_sessions.read_ignored_sessions(home))
    chosen = "SELECT id, session_id FROM sessions WHERE cwd IS NULL OR session_id IN (SELECT value FROM json_each(?))"
    for session, session_id in connection.execute(chosen, (json.dumps(listed),)):
        if found := policy.class_of(None, session_id):
            note(session, found)
    least = PrivacyClass.IGNORE if include_local_only else PrivacyClass.LOCAL_ONLY
    withheld = {session: found for session, found in classes.items() if found >= least}
    ids = connection.execute(
        "SELECT session_id FROM sessions WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(withheld)),)
    )
    ignored = sum(found is PrivacyClass.IGNORE for found in withheld.values())
    return WithheldSessions(
        frozenset(withheld), frozenset(session_id for (session_id,) in ids), ignored, len(withheld) - ignored
    )
