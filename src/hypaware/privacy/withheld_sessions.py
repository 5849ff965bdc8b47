"""Recorded sessions that must not leave this machine, found in the index by their folders and ids.

A session is withheld if any folder in which it was, or the session itself, is ignored or local-only. Rows of a session
quote each other, so it is withheld as a whole.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from hypaware import config
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy

_POLICY_SECONDS = 2.0
# Reading the policies takes at most this part of the time.
_LEAST_REST = 10
# `totals` holds all folders in which a session was.
_FOLDERS = "SELECT id, name FROM names WHERE id IN (SELECT cwd FROM totals UNION SELECT cwd FROM sessions)"


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
    classes = {number: policy.class_of(name, None) for number, name in connection.execute(_FOLDERS)}
    return _collect_sessions(home, connection, policy, classes, include_local_only)


def list_session_folders(home: Home, session_id: str) -> list[str]:
    """Return the folders in which a recorded session was; none if the index does not have it or cannot be read."""
    query = """SELECT name FROM names WHERE id IN (
        SELECT cwd FROM sessions WHERE session_id = :id
        UNION SELECT t.cwd FROM totals t JOIN sessions s ON s.id = t.session WHERE s.session_id = :id)"""
    with suppress(sqlite3.Error, OSError):
        if home.index.is_file():
            with open_readonly(home.index) as connection:
                return [name for (name,) in connection.execute(query, {"id": session_id})]
    return []


class WithheldSessionFinder:
    """Finds the withheld sessions for a process that asks often; safe to use from several threads.

    The answer is kept until the index changes. Policies are read again after a few seconds, and less often if that
    takes long: a rule can be in any of the folders.
    """

    def __init__(
        self, home: Home, *, include_local_only: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._include_local_only, self._clock = home, include_local_only, clock
        self._lock = threading.Lock()
        self._read_again_at = -math.inf
        self._policy: PrivacyPolicy
        self._classes: dict[int, tuple[str, PrivacyClass]] = {}
        self._found: WithheldSessions
        self._found_in: str | None = None
        """The state of the index that `_found` was read from."""

    def __call__(self, connection: Connection) -> frozenset[int]:
        return self.find(connection).numbers

    def find(self, connection: Connection) -> WithheldSessions:
        """Return the withheld sessions. Raise HypError if the policy cannot be read."""
        with self._lock:
            state = connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
            is_due = self._clock() >= self._read_again_at
            if is_due or state is None or state[0] != self._found_in:
                began = self._clock()
                # Not kept if anything fails.
                self._found_in, self._read_again_at = None, -math.inf
                if is_due:
                    self._policy = PrivacyPolicy.from_config(self._home, config.load(self._home).privacy)
                    self._classes = {}
                classes = self._classify(connection)
                self._found = _collect_sessions(self._home, connection, self._policy, classes, self._include_local_only)
                self._found_in = None if state is None else state[0]
                now = self._clock()
                self._read_again_at = now + max(_POLICY_SECONDS, _LEAST_REST * (now - began))
            return self._found

    def _classify(self, connection: Connection) -> dict[int, PrivacyClass]:
        """Return the class of each folder in the index. Rules are looked for only in folders that are new."""
        classes = {}
        for number, name in connection.execute(_FOLDERS):
            known = self._classes.get(number)
            # Numbers begin again if the index is built again.
            if known is None or known[0] != name:
                known = self._classes[number] = (name, self._policy.class_of(name, None))
            classes[number] = known[1]
        return classes


def _collect_sessions(
    home: Home,
    connection: Connection,
    policy: PrivacyPolicy,
    folder_classes: Mapping[int, PrivacyClass],
    include_local_only: bool,
) -> WithheldSessions:
    classes: dict[int, PrivacyClass] = {}

    def note(session: int, found: PrivacyClass) -> None:
        classes[session] = max(found, classes.get(session, PrivacyClass.FULL))

    if folders := {number: found for number, found in folder_classes.items() if found}:
        query = """SELECT session, cwd FROM totals WHERE cwd IN (SELECT value FROM json_each(:folders))
            UNION SELECT id, cwd FROM sessions WHERE cwd IN (SELECT value FROM json_each(:folders))"""
        for session, folder in connection.execute(query, {"folders": json.dumps(list(folders))}):
            note(session, folders[folder])
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
