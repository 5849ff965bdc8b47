"""Samples of clients as recorded sessions, and the rows that their restored transcripts give."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypaware.clients.client import Provider
from hypaware.clients.recorded_session import RecordedSession, Transcript, group_messages
from hypaware.model import canonical
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.history import rows_of

_JSON = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.type is ColumnType.JSON]
Rows = dict[str, Row]
"""By their part ids, with parsed JSON columns."""


def read_rows(provider: Provider, paths: Iterable[Path]) -> Rows:
    """Return the rows of these files, imported in this order. Of a part that is there twice, the first row counts."""
    found: Rows = {}
    for path in paths:
        for row in rows_of(provider, path)[0]:
            found.setdefault(row["part_id"], row)
    return found


def by_session(rows: Rows) -> dict[str, RecordedSession]:
    """Return the sessions of rows. A fork has the messages of its origin, too."""
    ordered = sorted(rows.values(), key=lambda row: (row["message_created_at"], row["message_index"]))
    sessions = {}
    for session_id in dict.fromkeys(row["session_id"] for row in ordered):
        own = [row for row in ordered if row["session_id"] == session_id]
        messages = {row["message_id"]: row["previous_message_id"] for row in ordered}
        wanted = {row["message_id"] for row in own}
        pending = list(wanted)
        while pending:
            for previous in messages[pending.pop()]:
                if previous in messages and previous not in wanted:
                    wanted.add(previous)
                    pending.append(previous)
        stored = [as_stored(row) for row in ordered if row["message_id"] in wanted]
        sessions[session_id] = RecordedSession(
            session_id=session_id,
            client=own[0]["client_name"],
            messages=group_messages(stored),
            cwd=own[0].get("cwd"),
        )
    return sessions


def as_stored(row: Row) -> Row:
    return row | {name: canonical.dumps(row[name]) for name in _JSON if name in row}


def write_files(transcript: Transcript) -> list[Path]:
    for file in transcript.files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_bytes(file.content)
    return [file.path for file in transcript.files if file.path.suffix == ".jsonl"]


def differences(one: Row, other: Row) -> dict[str, tuple[Any, Any]]:
    """Return the columns in which two rows differ, without the path of their file."""
    found = {}
    for name in one.keys() | other.keys():
        left, right = one.get(name), other.get(name)
        if name == "attributes":
            left, right = _without_path(left), _without_path(right)
        if left != right:
            found[name] = (left, right)
    return found


def _without_path(attributes: Any) -> Any:
    gateway = {name: value for name, value in attributes["gateway"].items() if name != "source_path_hash"}
    return {**attributes, "gateway": gateway}
