"""Match keys: which live row and which native row are the same part.

A dataset whose rows can arrive both ways has `MatchRules`; the lake keeps one row, under one sequence. Two rows of
`ai_gateway_messages` **of one session** (and of one thread, if the session has threads) are the same part if they share
a key. The keys, exact ones first:

| key | for | why it is exact |
|---|---|---|
| `call:<tool_call_id>` · `result:<tool_call_id>` | tool calls · their results | both rows have the id |
| `api:<API message id>:<part>` | the model's text, reasoning, … | raw_frame.message_id is that id in both |
| `error:<request_id>` | an error in place of a response | the response's request-id is the line's requestId |
| `said:<role>:<agent_id>:<part>` | the user's text, files, images; the model's without an API id | it is not |

`<part>` is a hash of part_type, content_text (without trailing white space), tool name and arguments: the fields of
the block that both rows hold. It does not include the block's index, which imported rows do not keep.

A live row of a model's part that was seen only in a request's history has no API id. Therefore native rows of the
model also have a `said` key; live rows have one only in that case. Several parts of a session can share a key
("continue", equal blocks, images): the n-th live row matches the n-th native row, in the order of message_created_at.

Claude Code before 2.1 does not identify its agents in requests. Its live rows and native rows of subagents therefore
also have `said:<role>:?:<part>`. Versions of Codex that send item ids need no matching: the part_id is the same.

@ref keys#matching
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypaware.model import canonical

AnyRow = Mapping[str, Any]
_FALLBACK_ID = "gateway_fallback"
_PREVIOUS_PART_ID = "previous_part_id"
# In canonical JSON. Imported rows of old clients also lack their own id, but are not live.
_LIVE = '"source":"live"'
# These columns determine a row's file in the lake, so a settled row keeps them unless the native values lead there too.
_TIME_COLUMNS = ("message_created_at", "date")
_SOURCE_COLUMNS = ("client_name", "conversation_source", "provider")


@dataclass(frozen=True)
class RowMatchKeys:
    """The match keys of a row, and how reliable they are."""

    keys: tuple[str, ...]
    """The most reliable first. If several rows share a key, the n-th live row matches the n-th native row."""
    is_live: bool
    """The row was recorded without the client's id. A live row matches only a native row."""
    exact: int = 0
    """How many of the keys, from the first on, are valid regardless of time."""
    time_uncertain: bool = False
    """The row's time is approximate and must not rule out a match."""


@dataclass(frozen=True)
class MatchRules:
    columns: tuple[str, ...]
    """The columns that `match_keys` reads."""
    marker_column: str
    """The one column that `may_be_live` and `previous_keys` read."""
    may_be_live: Callable[[AnyRow], bool]
    """A quick test; false if the row is certainly native."""
    match_keys: Callable[[AnyRow], RowMatchKeys | None]
    """None for a row that cannot be matched, and for one that already was."""
    previous_keys: Callable[[AnyRow], tuple[str, ...]]
    """Dedupe keys that a row had before it was matched with its native row."""
    settle: Callable[[AnyRow, AnyRow], dict[str, Any]]
    """(live row, native row), with all stored columns of both -> the row that replaces the live row."""


def list_match_keys(row: AnyRow) -> list[str]:
    """Return the keys of a stored row; its JSON columns may be text or values. A row without keys matches nothing."""
    return _list_keys(row, _gateway_group(row).get("source") == "live")


def _list_keys(row: AnyRow, live: bool) -> list[str]:
    kind, role = row.get("part_type"), row.get("role")
    if kind == "tool_call" and (call := row.get("tool_call_id")):
        return [f"call:{call}"]
    if kind == "tool_result" and (call := row.get("tool_result_for")):
        return [f"result:{call}"]
    if kind == "error":
        request = row.get("request_id")
        return [f"error:{request}"] if request else []
    arguments, text, agent = row.get("tool_args"), row.get("content_text"), row.get("agent_id")
    if arguments is not None and not isinstance(arguments, str):
        arguments = canonical.dumps(arguments)
    fields = [kind, text.rstrip() if isinstance(text, str) else None, row.get("tool_name"), arguments]
    part = hashlib.sha256(canonical.dumps(fields).encode()).hexdigest()[:32]
    by_content = [f"said:{role}:{agent or ''}:{part}"]
    if agent if not live else row.get("is_sidechain") is None:
        by_content.append(f"said:{role}:?:{part}")
    if role != "assistant" or not isinstance(api_id := _parse_object(row.get("raw_frame")).get("message_id"), str):
        return by_content
    exact = f"api:{api_id}:{part}"
    return [exact] if live else [exact, *by_content]


def _may_be_live(row: Mapping[str, Any]) -> bool:
    attributes = row.get("attributes")
    return isinstance(attributes, str) and _FALLBACK_ID in attributes and _LIVE in attributes


def _match_keys(row: Mapping[str, Any]) -> RowMatchKeys | None:
    session = row.get("session_id")
    gateway = _gateway_group(row)
    live = gateway.get("source") == "live"
    has_fallback_id = gateway.get("identity_source") == _FALLBACK_ID
    # A live row with its client's own id already has the native row's key; a settled row needs no other match.
    if not session or (live and not has_fallback_id) or _PREVIOUS_PART_ID in gateway:
        return None
    keys = _list_keys(row, live)
    exact = sum(not key.startswith("said:") for key in keys)
    scoped = tuple(f"{len(session)}:{session}:{key}" for key in keys)
    return RowMatchKeys(scoped, live, exact, gateway.get("time_source") == "request") if keys else None


def _previous_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    attributes = row.get("attributes")
    if not isinstance(attributes, str) or _PREVIOUS_PART_ID not in attributes:
        return ()
    before = _gateway_group(row).get(_PREVIOUS_PART_ID)
    return (before,) if isinstance(before, str) else ()


def _settle(live: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the native row, completed with values that only the live row has, `attributes.gateway` included."""
    kept = {name for name in live if native.get(name) is None}
    gateway = {**_gateway_group(live), _PREVIOUS_PART_ID: live["part_id"]}
    for name in ("identity_source", "time_source"):
        gateway.pop(name, None)
    if live["date"] != native["date"]:
        kept.update(_TIME_COLUMNS)
        gateway["native_created_at"] = str(native["message_created_at"])
    if _source_of(live) != _source_of(native):
        kept.update(_SOURCE_COLUMNS)
    attributes = {**_parse_object(native.get("attributes"))}
    attributes["gateway"] = {**_gateway_group(native), **gateway}
    settled = {name: live[name] if name in kept else native[name] for name in {**live, **native}}
    settled["attributes"] = canonical.dumps(attributes)
    return settled


def _source_of(row: Mapping[str, Any]) -> str | None:
    return next((value for name in _SOURCE_COLUMNS if (value := row.get(name))), None)


def _gateway_group(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _parse_object(row.get("attributes")).get("gateway")
    return found if isinstance(found, Mapping) else {}


def _parse_object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = canonical.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


MESSAGE_MATCH_RULES = MatchRules(
    columns=(
        *("session_id", "agent_id", "is_sidechain", "role", "part_type", "content_text", "tool_name"),
        *("tool_call_id", "tool_result_for", "tool_args", "request_id", "attributes", "raw_frame"),
    ),
    marker_column="attributes",
    may_be_live=_may_be_live,
    match_keys=_match_keys,
    previous_keys=_previous_keys,
    settle=_settle,
)
