"""How rows of the gateway and rows of transcripts meet: the settling of `ai_gateway_messages`.

`match_keys(row)` works on a stored row of either origin, from its columns alone; nothing is stored for it beyond what
the columns say anyway. Two rows **of one session** (and of one thread, where there are threads) are the same part if
they have a key in common. Keys, the exact ones first:

| key | of | why it is exact |
|---|---|---|
| `call:<tool_call_id>` · `result:<tool_call_id>` | tool calls · their results | the id travels |
| `api:<API message id>:<part>` | the model's text, reasoning, … | raw_frame.message_id is that id in both |
| `error:<request_id>` | an error in the answer's place | the request-id of the answer is the line's requestId |
| `said:<role>:<agent_id>:<part>` | the user's words, files, images; the model's without an API id | by content |

`<part>` is a hash of part_type and content_text (without white space at its end), tool name and arguments: the block as
far as both rows hold it. An index of the block is not in it: imported rows do not keep `apiBlockIndex`, and the words
tell the blocks of one API message apart (equal blocks of one message meet in their order).

A live row of a model's piece that was only ever seen in a history has no API id, so imported rows of the model have a
`said` key too; live ones have one only in that case. A `said` key may be held by several parts of a session
("continue"): the n-th live row meets the n-th imported one, in the order of message_created_at. Images hold nothing
that could be compared: they meet in order too.

Claude Code before 2.1 does not tell its agents apart on the wire: its live rows, which do not know whether they are a
subagent's, and imported rows of subagents have `said:<role>:?:<part>` too.

Codex since it shows ids: both origins have the item's id as message_id, so part_id is the same and nothing needs to be
matched. Older Codex: tool calls by call_id, the rest by content; its rollouts keep neither response ids nor item ids.

@ref keys#meeting
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical
from hypaware.model.settling import Meeting, Settling

_FALLBACK = "gateway_fallback"
_BEFORE = "previous_part_id"
# As canonical JSON writes it. Imported rows of old clients are without their own id, too, and are not live.
_LIVE = '"source":"live"'
# Where a settled row lies in the lake follows from these, so they stay unless the native ones lead there as well.
_TIME = ("message_created_at", "date")
_SOURCE = ("client_name", "conversation_source", "provider")


def match_keys(row: Mapping[str, Any]) -> list[str]:
    """The keys of a stored row; JSON columns as text or as values. Empty: it can only meet itself."""
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
    said = [f"said:{role}:{agent or ''}:{part}"]
    if agent if not live else row.get("is_sidechain") is None:
        said.append(f"said:{role}:?:{part}")
    if role != "assistant" or not isinstance(api_id := _object(row.get("raw_frame")).get("message_id"), str):
        return said
    exact = f"api:{api_id}:{part}"
    return [exact] if live else [exact, *said]


def is_live(row: Mapping[str, Any]) -> bool:
    """Whether the gateway made the row."""
    return _gateway(row).get("source") == "live"


def _part(row: Mapping[str, Any]) -> str:
    arguments = row.get("tool_args")
    if arguments is not None and not isinstance(arguments, str):
        arguments = canonical.text(arguments)
    text = row.get("content_text")
    said = (row.get("part_type"), text.rstrip() if isinstance(text, str) else None, row.get("tool_name"), arguments)
    return hashlib.sha256(canonical.text(list(said)).encode()).hexdigest()[:32]


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = canonical.parse(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _may_be_fallback(row: Mapping[str, Any]) -> bool:
    told = row.get("attributes")
    return isinstance(told, str) and _FALLBACK in told and _LIVE in told


def _meeting(row: Mapping[str, Any]) -> Meeting | None:
    session = row.get("session_id")
    gateway = _gateway(row)
    live = gateway.get("source") == "live"
    is_fallback = gateway.get("identity_source") == _FALLBACK
    # A live row with its client's own id is the imported one, by that id; one that has met is done.
    if not session or (live and not is_fallback) or _BEFORE in gateway:
        return None
    keys = _keys(row, live)
    exact = sum(not key.startswith("said:") for key in keys)
    scoped = tuple(f"{len(session)}:{session}:{key}" for key in keys)
    return Meeting(scoped, live, exact, gateway.get("time_source") == "request") if keys else None


def _former_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    told = row.get("attributes")
    if not isinstance(told, str) or _BEFORE not in told:
        return ()
    before = _gateway(row).get(_BEFORE)
    return (before,) if isinstance(before, str) else ()


def _settled(live: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """The native row, in the live one's place; what only the gateway knows stays, also in `attributes.gateway`."""
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
    telltale="attributes",
    may_be_fallback=_may_be_fallback,
    meeting=_meeting,
    former_keys=_former_keys,
    settled=_settled,
)
