"""Match keys of `ai_gateway_messages`: which live row and which native row are the same part.

`match_keys(row)` works on a stored row of either origin, from its columns alone; no further data is stored for it.
Two rows **of one session** (and of one thread, if the session has threads) are the same part if they share a key. The
keys, exact ones first:

| key | for | why it is exact |
|---|---|---|
| `call:<tool_call_id>` · `result:<tool_call_id>` | tool calls · their results | both rows have the id |
| `api:<API message id>:<part>` | the model's text, reasoning, … | raw_frame.message_id is that id in both |
| `error:<request_id>` | an error in place of a response | the response's request-id is the line's requestId |
| `said:<role>:<agent_id>:<part>` | the user's text, files, images; the model's without an API id | it is not |

`<part>` is a hash of part_type, content_text (without trailing white space), tool name and arguments: the fields of
the block that both rows hold. It does not include the block's index, because imported rows do not keep
`apiBlockIndex`; the content tells the blocks of one API message apart, and equal blocks of one message match in their
order.

A live row of a model's part that was seen only in a request's history has no API id. Therefore native rows of the
model also have a `said` key; live rows have one only in that case. Several parts of a session can share a `said` key
("continue"): the n-th live row matches the n-th native row, in the order of message_created_at. Images have no
content to compare, so they match in order too.

Claude Code before 2.1 does not identify its agents in requests. Its live rows, which do not know whether they belong
to a subagent, and native rows of subagents therefore also have `said:<role>:?:<part>`.

Versions of Codex that send item ids need no matching: rows of both origins have the item's id as message_id, so their
part_id is the same. For older versions, tool calls match by call_id and everything else by content; their rollouts
keep neither response ids nor item ids.

@ref keys#matching
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical
from hypaware.model.settling import Meeting, Settling

_FALLBACK = "gateway_fallback"
_BEFORE = "previous_part_id"
# In canonical JSON. Imported rows of old clients also lack their own id, but are not live.
_LIVE = '"source":"live"'
# These columns determine a row's file in the lake, so a settled row keeps them unless the native values lead there too.
_TIME = ("message_created_at", "date")
_SOURCE = ("client_name", "conversation_source", "provider")


def match_keys(row: Mapping[str, Any]) -> list[str]:
    """Return the keys of a stored row; its JSON columns may be text or values. A row without keys matches nothing."""
    return _keys(row, is_live(row))


def _keys(row: Mapping[str, Any], live: bool) -> list[str]:
    kind, role = row.get("part_type"), row.get("role")
    if kind == "tool_call" and (call := row.get("tool_call_id")):
        return [f"call:{call}"]
    if kind == "tool_result" and (call := row.get("tool_result_for")):
        return [f"result:{call}"]
    if kind == "error":
        request = row.get("request_id")
        return [f"error:{request}"] if request else []
    part = _part(row)
    agent = row.get("agent_id")
    by_content = [f"said:{role}:{agent or ''}:{part}"]
    if agent if not live else row.get("is_sidechain") is None:
        by_content.append(f"said:{role}:?:{part}")
    if role != "assistant" or not isinstance(api_id := _object(row.get("raw_frame")).get("message_id"), str):
        return by_content
    exact = f"api:{api_id}:{part}"
    return [exact] if live else [exact, *by_content]


def is_live(row: Mapping[str, Any]) -> bool:
    """Return whether the gateway recorded the row."""
    return _gateway(row).get("source") == "live"


def _part(row: Mapping[str, Any]) -> str:
    arguments = row.get("tool_args")
    if arguments is not None and not isinstance(arguments, str):
        arguments = canonical.text(arguments)
    text = row.get("content_text")
    fields = (row.get("part_type"), text.rstrip() if isinstance(text, str) else None, row.get("tool_name"), arguments)
    return hashlib.sha256(canonical.text(list(fields)).encode()).hexdigest()[:32]


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = canonical.parse(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _may_be_fallback(row: Mapping[str, Any]) -> bool:
    attributes = row.get("attributes")
    return isinstance(attributes, str) and _FALLBACK in attributes and _LIVE in attributes


def _meeting(row: Mapping[str, Any]) -> Meeting | None:
    session = row.get("session_id")
    gateway = _gateway(row)
    live = gateway.get("source") == "live"
    has_fallback_id = gateway.get("identity_source") == _FALLBACK
    # A live row with its client's own id already has the native row's key; a settled row needs no other match.
    if not session or (live and not has_fallback_id) or _BEFORE in gateway:
        return None
    keys = _keys(row, live)
    exact = sum(not key.startswith("said:") for key in keys)
    scoped = tuple(f"{len(session)}:{session}:{key}" for key in keys)
    return Meeting(scoped, live, exact, gateway.get("time_source") == "request") if keys else None


def _former_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    attributes = row.get("attributes")
    if not isinstance(attributes, str) or _BEFORE not in attributes:
        return ()
    before = _gateway(row).get(_BEFORE)
    return (before,) if isinstance(before, str) else ()


def _settled(live: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the native row, completed with values that only the live row has, `attributes.gateway` included."""
    kept = {name for name in live if native.get(name) is None}
    gateway = {name: value for name, value in _gateway(live).items() if name not in ("identity_source", "time_source")}
    gateway[_BEFORE] = live["part_id"]
    if live["date"] != native["date"]:
        kept.update(_TIME)
        gateway["native_created_at"] = str(native["message_created_at"])
    if _first(live) != _first(native):
        kept.update(_SOURCE)
    attributes = {**_object(native.get("attributes"))}
    attributes["gateway"] = {**_gateway(native), **gateway}
    settled = {name: live[name] if name in kept else native[name] for name in {**live, **native}}
    settled["attributes"] = canonical.text(attributes)
    return settled


def _first(row: Mapping[str, Any]) -> str | None:
    return next((value for name in _SOURCE if (value := row.get(name))), None)


def _gateway(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _object(row.get("attributes")).get("gateway")
    return found if isinstance(found, Mapping) else {}


SETTLING = Settling(
    columns=(
        "session_id",
        "agent_id",
        "is_sidechain",
        "role",
        "part_type",
        "content_text",
        "tool_name",
        "tool_call_id",
        "tool_result_for",
        "tool_args",
        "request_id",
        "attributes",
        "raw_frame",
    ),
    marker_column="attributes",
    may_be_live=_may_be_fallback,
    match_keys=_meeting,
    previous_keys=_former_keys,
    settle=_settled,
)
