"""What the clients are about to delete, whether it is recorded, and what only this home still has.

A session counts as recorded if its checkpoints say that all of its files were read to their end, by an import or by
the daemon that follows them. Sessions that a privacy setting, the retention or a purge excludes are counted apart. Only
names, sizes and times of files are inspected.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware import plugins, text
from hypaware.clients.client import Client, ExpiringProvider, ExpiryRule, Provider, RelocatingProvider
from hypaware.config import ClientConfig, Config
from hypaware.config import load as load_config
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import tombstones
from hypaware.state.location import find_machine, has_state, open_store
from hypaware.state.store import Row
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, warning
from hypaware.text import format_count

SOON = timedelta(days=7)
MAX_LISTED = 1000
"""How many sessions of a kind the JSON document lists."""
NOT_IMPORTED = "not imported yet"
DISABLED = "the client is disabled in the config"
DECLINED = "its history was declined"
CHANGED = "it has changed since it was read"
EXCLUDED = "excluded, as you asked"
OUTSIDE = "it has messages outside the time window of the import"
_SESSION_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
_IN_SESSION_FOLDER = f"{os.sep}subagents{os.sep}"
# Checkpoints store such a path with a hash; it cannot be looked up.
_NOT_UTF8 = re.compile(r" \[[0-9a-f]{16}\]$")
_EMPTY = (None, "[]")


@dataclass(frozen=True)
class ClientHistory:
    """The sessions of one client on this machine, and of this client in this home."""

    client: str
    rule: ExpiryRule | None
    """When the client deletes them; None if it keeps them."""
    expiring: tuple[str, ...] = ()
    """The sessions that it deletes within `SOON`."""
    excluded: tuple[str, ...] = ()
    """Those of them that are not recorded, as the user asked."""
    unrecorded: tuple[tuple[str, str], ...] = ()
    """(session, reason) of those that are not recorded for another reason."""
    gone: tuple[str, ...] = ()
    """The recorded sessions that the client no longer has."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kept_days": self.rule.days if self.rule else None,
            "expiring": len(self.expiring),
            "expiring_sessions": list(self.expiring[:MAX_LISTED]),
            "excluded": len(self.excluded),
            "unrecorded": len(self.unrecorded),
            "unrecorded_sessions": [
                {"session_id": session, "reason": reason} for session, reason in self.unrecorded[:MAX_LISTED]
            ],
            "gone": len(self.gone),
            "gone_sessions": list(self.gone[:MAX_LISTED]),
        }


def list_expiring(
    home: Home, config: Config, environment: Mapping[str, str], now: datetime | None = None
) -> list[ClientHistory]:
    """Return the history of each client that has any, on disk or recorded. `environment` includes HOME."""
    checkpoints, is_purged = _read_checkpoints(home), _read_purged(home)
    providers = [each.backfill for each in plugins.load_plugins(plugins.CLIENTS, Client) if each.backfill]
    found = (
        _inspect_provider(
            each, config, environment, checkpoints.get(each.name, {}), is_purged, now or datetime.now(UTC)
        )
        for each in providers
    )
    return [each for each in found if each is not None]


def read_history(home: Home) -> dict[str, dict[str, Any]]:
    """Return the JSON document of each client's history, by client, with the settings of this home and user."""
    environment = {"HOME": str(Path.home()), **os.environ}
    try:
        config = load_config(home)
    except HypError:
        config = Config()  # `hyp status` reports it
    return {each.client: each.as_json() for each in list_expiring(home, config, environment)}


def describe_history(history: Mapping[str, Any], client: str) -> str | None:
    """Return one line about the JSON document of a history, for people; None if there is nothing to say."""
    parts = []
    if expiring := history["expiring"]:
        unrecorded, excluded = history["unrecorded"], history["excluded"]
        if unrecorded:
            state = "not recorded" if unrecorded == expiring else f"{unrecorded:,} of them not recorded"
        elif excluded == expiring:
            state = "not recorded, as you asked"
        elif excluded:
            state = f"{expiring - excluded:,} recorded, {excluded:,} left out as you asked"
        else:
            state = "all recorded" if expiring > 1 else "recorded"
        parts.append(f"{client} deletes {format_count(expiring, 'session')} within {SOON.days} days: {state}")
    if gone := history["gone"]:
        parts.append(f"{format_count(gone, f'session of {client} is', f'sessions of {client} are')} only here")
    return "; ".join(parts) or None


def inspect_history(inputs: StatusInput) -> PartStatus[dict[str, dict[str, Any]]]:
    """Return the JSON document of each client's history, by client."""
    found = list_expiring(inputs.home, inputs.config, inputs.environment, inputs.now)
    return PartStatus(
        {each.client: each.as_json() for each in found},
        tuple(diagnostic for each in found for diagnostic in expiry_diagnostics(each)),
    )


def expiry_diagnostics(history: ClientHistory) -> Iterator[Diagnostic]:
    if not history.unrecorded or history.rule is None:
        return
    client, reasons = history.client, Counter(reason for _, reason in history.unrecorded)
    sessions = format_count(len(history.unrecorded), "unrecorded session")
    why = ", ".join(f"{count:,} {reason}" if len(reasons) > 1 else reason for reason, count in reasons.most_common())
    kept = f"it keeps sessions for {format_count(history.rule.days, 'day')} ({history.rule.setting})"
    repair = f"hyp backfill {client} --retention-days 0" if OUTSIDE in reasons else f"hyp backfill {client}"
    message = f"{client} will delete {sessions} within {SOON.days} days: {why}; {kept}"
    yield warning("sessions_unrecorded", message, repair)


def _inspect_provider(
    provider: Provider,
    config: Config,
    environment: Mapping[str, str],
    checkpoints: Mapping[str, Row],
    is_purged: Callable[[str], bool],
    now: datetime,
) -> ClientHistory | None:
    gone = tuple(
        session
        for path, row in checkpoints.items()
        if row["consumed"] and _is_gone(path) and not is_purged(session := _session_id(path))
        if not (isinstance(provider, RelocatingProvider) and provider.is_kept_elsewhere(path))
    )
    if not isinstance(provider, ExpiringProvider) or (rule := provider.expiry(environment)) is None:
        return ClientHistory(provider.name, None, gone=gone) if checkpoints else None
    check = _RecordCheck(checkpoints, config.clients.get(provider.name, ClientConfig()), config, now)
    expiring: list[str] = []
    excluded: list[str] = []
    unrecorded: list[tuple[str, str]] = []
    last_written = (now + SOON - timedelta(days=rule.days)).timestamp()
    for path, status in provider.list_sessions(environment):
        if status.st_mtime >= last_written or not status.st_size:
            continue
        session = _session_id(path)
        expiring.append(session)
        if is_purged(session):
            excluded.append(session)
            continue
        found = [check.find_reason(path, status), *map(check.find_reason, provider.list_parts(path))]
        if why := next((each for each in found if each not in (None, EXCLUDED)), None):
            unrecorded.append((session, why))
        elif EXCLUDED in found:
            excluded.append(session)
    return ClientHistory(provider.name, rule, tuple(expiring), tuple(excluded), tuple(unrecorded), gone)


@dataclass(frozen=True)
class _RecordCheck:
    checkpoints: Mapping[str, Row]
    client: ClientConfig
    config: Config
    now: datetime

    def find_reason(self, path: str, status: os.stat_result | None = None) -> str | None:
        """Return why a file is not recorded up to its end; None if it is."""
        try:
            status = status or os.lstat(path)
        except OSError:
            return None  # deleted in the meantime
        checkpoint, days = self.checkpoints.get(_stored_path(path)), self.config.retention.default_days
        if checkpoint is None or not checkpoint["consumed"]:
            written = datetime.fromtimestamp(status.st_mtime, UTC)
            if days and written < self.now - timedelta(days=days):
                return EXCLUDED
            declined = text.parse_time(self.client.history_from)
            if not self.client.enabled:
                return DISABLED
            return DECLINED if declined and written < declined else NOT_IMPORTED
        if (checkpoint["size"], checkpoint["mtime_ns"]) != (status.st_size, status.st_mtime_ns):
            return CHANGED
        if checkpoint["left_out"] not in _EMPTY:
            return EXCLUDED if days else OUTSIDE
        return EXCLUDED if checkpoint.get("ignored") not in _EMPTY else None


def _stored_path(path: str) -> str:
    """Return the path as checkpoints store it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        # Imported here, because it loads much that a status does not need otherwise.
        from hypaware.backfill.survey import encode_path

        return encode_path(path)
    return path


def _is_gone(path: str) -> bool:
    """Return whether the client no longer has this file. The file of a subagent goes with its session."""
    if _IN_SESSION_FOLDER in path or _NOT_UTF8.search(path):
        return False
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _session_id(path: str) -> str:
    """Return the id of a session from its file's name, which ends with it."""
    stem = path.rpartition(os.sep)[2].partition(".")[0]
    found = _SESSION_ID.search(stem)
    return found[0] if found else stem


def _read_purged(home: Home) -> Callable[[str], bool]:
    """Return whether a session was purged. Tombstones that cannot be read name none; the status reports them."""
    try:
        return tombstones.read_tombstones(home).purge_filter.has_session
    except (HypError, OSError, sqlite3.Error):
        return tombstones.NO_PURGES.has_session


def _read_checkpoints(home: Home) -> dict[str, dict[str, Row]]:
    """Return the checkpoints by provider and path. A state that cannot be read has none; the status reports it."""
    found: dict[str, dict[str, Row]] = {}
    if has_state(home):
        try:
            with open_store(home, read_only=True).reading() as connection:
                rows: Sequence[Row] = (
                    connection.rows("SELECT * FROM sources") if connection.has_table("sources") else ()
                )
        except (HypError, OSError, sqlite3.Error):
            return {}
        machine = find_machine(home)
        for row in rows:
            # A state that was not opened since the migration does not have this column yet.
            if row.get("machine", "") == machine:
                found.setdefault(row["provider"], {})[row["path"]] = row
    return found
