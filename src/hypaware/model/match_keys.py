"""Match keys: which live row and which native row are the same part.

A dataset whose rows can arrive both ways has `MatchRules`; the lake keeps one row, under one sequence. Two rows of
`ai_gateway_messages` **of one session** (and of one thread, if the session has threads) are the same part if they share
a key. The keys, exact ones first:

| key | for | why it is exact |
|---|---|---|
| `call:<tool_call_id>` · `result:<tool_call_id>` | tool calls · their results | both rows have the id |
| `api:<API message id>:<part>` | the model's text, reasoning, … | raw_frame.message_id is that id in both |
| `api:<API message id>:unfinished` | the block in which a response ended early | a response ends once |
| `error:<request_id>` | an error in place of a response | the response's request-id is the line's requestId |
| `said:<role>:<agent_id>:<part>` | the user's text, files, images; the model's without an API id | it is not |

`<part>` is a hash of part_type, content_text (without trailing white space), tool name and arguments: the fields of
the block that both rows hold. It does not include the block's index, which imported rows do not keep.

A live row of a model's part that was seen only in a request's history has no API id. Therefore native rows of the
model also have a `said` key; live rows have one only in that case. Several parts of a session can share a key
("continue", equal blocks, images): the n-th live row matches the n-th native row, in the order of message_created_at.

If the user interrupts a response, the client and the gateway may have received different parts of its last block. The
live row is marked as unfinished; the native row has the response's usage but no reason why it finished.

Claude Code before 2.1 does not identify its agents in requests. Its live rows and native rows of subagents therefore
also have `said:<role>:?:<part>`.

A prompt that was rescued from a prompt history (`attributes.claude.source`) counts as a live row without an id: if its
transcript is imported later, the native row settles it.

Codex sends item ids: the live row has the part_id of its native row, which replaces its columns all the same, because
a row made from a request's history lacks usage, time and git facts. Such a row also matches a live row without the
client's id, recorded before the client began to send ids.

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
_PREVIOUS_LINK = "previous_link"
# In canonical JSON. Imported rows of old clients also lack their own id, but are not live.
_LIVE, _SETTLED = '"source":"live"', f'"{_PREVIOUS_PART_ID}":'
PROMPT_HISTORY = "prompt_history"
"""The mark of rows that were made from a history of prompts, because their transcript is gone."""
_UNFINISHED = "unfinished"
_RESCUED = f'"source":"{PROMPT_HISTORY}"'
# These columns determine a row's stream, so a settled row keeps them unless the native values lead there too.
_SOURCE_COLUMNS = ("client_name", "conversation_source", "provider")


@dataclass(frozen=True)
class RowMatchKeys:
    """The match keys of a row, and how reliable they are."""

    keys: tuple[str, ...]
    """The most reliable first. If several rows share a key, the n-th live row matches the n-th native row."""
    is_live: bool
    """The row was recorded without the client's id. It matches only a row that has that id."""
    is_unsettled: bool = False
    """The row is live and has the client's id. The native row with this id settles it."""
    is_settled: bool = False
    """The row was settled by its native row and matches no other."""
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
    """A quick test; false if the row is certainly native or settled."""
    may_be_live_sql: str
    """The same test in SQL."""
    match_keys: Callable[[AnyRow], RowMatchKeys | None]
    """None for a row that cannot be matched."""
    previous_keys: Callable[[AnyRow], tuple[str, ...]]
    """Dedupe keys that a row had before it was matched with its native row."""
    settle: Callable[[AnyRow, AnyRow], dict[str, Any]]
    """(live row, native row), with all stored columns of both -> the row that replaces the live row."""
    link_column: str
    """The column with the id of the previous message, in a JSON array."""
    relink: Callable[[AnyRow, str], dict[str, Any]]
    """(row, id) -> the row with a link to that id in place of a replaced one."""
    is_patched: Callable[[AnyRow], bool]
    """Whether columns changed after the row id was computed: the row was settled or its link corrected."""


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
    exact = [f"api:{api_id}:{part}"]
    if _is_unfinished(row, live):
        exact.append(f"api:{api_id}:{_UNFINISHED}")
    return exact if live else [*exact, *by_content]


def _is_unfinished(row: AnyRow, live: bool) -> bool:
    if live:
        return row.get("provider_subtype") == _UNFINISHED
    return "finish_reason" not in _parse_object(row.get("status")) and "usage" in _parse_object(row.get("attributes"))


def _may_be_live(row: Mapping[str, Any]) -> bool:
    attributes = row.get("attributes")
    if not isinstance(attributes, str) or _SETTLED in attributes:
        return False
    return _LIVE in attributes or _RESCUED in attributes


def _match_keys(row: Mapping[str, Any]) -> RowMatchKeys | None:
    session = row.get("session_id")
    gateway = _gateway_group(row)
    if not session:
        return None
    settled = _PREVIOUS_PART_ID in gateway
    recorded_live = (gateway.get("source") == "live" or _is_rescued(row)) and not settled
    is_live = recorded_live and gateway.get("identity_source") == _FALLBACK_ID
    is_unsettled = recorded_live and not is_live
    keys = _list_keys(row, is_live)
    if not keys and not is_unsettled:
        return None
    exact = sum(not key.startswith("said:") for key in keys)
    scoped = tuple(f"{len(session)}:{session}:{key}" for key in keys)
    return RowMatchKeys(scoped, is_live, is_unsettled, settled, exact, gateway.get("time_source") == "request")


def _previous_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    attributes = row.get("attributes")
    if not isinstance(attributes, str) or _PREVIOUS_PART_ID not in attributes:
        return ()
    before = _gateway_group(row).get(_PREVIOUS_PART_ID)
    return (before,) if isinstance(before, str) else ()


def _settle(live: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the native row, completed with values that only the live row has, also in groups of `attributes`."""
    # A live row may have a type of its own, to which its subtype belongs.
    kept = {name for name in live if native.get(name) is None} - {"provider_subtype"}
    if _source_of(live) != _source_of(native):
        kept.update(_SOURCE_COLUMNS)
    recorded, attributes = _parse_object(live.get("attributes")), {**_parse_object(native.get("attributes"))}
    gateway = {**_gateway_group(live), _PREVIOUS_PART_ID: live["part_id"]}
    for name in ("identity_source", "time_source", _PREVIOUS_LINK):
        gateway.pop(name, None)
    attributes["gateway"] = {**_gateway_group(native), **gateway}
    if isinstance(codex := attributes.get("codex"), Mapping):
        attributes["codex"] = {**_parse_object(recorded.get("codex")), **codex}
        # The client may have ended before it noted the usage of the response.
        if "usage" in recorded:
            attributes.setdefault("usage", recorded["usage"])
    settled = {name: live[name] if name in kept else native[name] for name in {**live, **native}}
    settled["attributes"] = canonical.dumps(attributes)
    return settled


def _relink(row: Mapping[str, Any], message_id: str) -> dict[str, Any]:
    attributes, replaced = _parse_object(row.get("attributes")), canonical.loads(row["previous_message_id"])[0]
    gateway = {**_gateway_group(row), _PREVIOUS_LINK: replaced}
    changed = {"previous_message_id": [message_id], "attributes": {**attributes, "gateway": gateway}}
    return {**row, **{name: canonical.dumps(value) for name, value in changed.items()}}


def _is_patched(row: Mapping[str, Any]) -> bool:
    attributes = row.get("attributes")
    return isinstance(attributes, str) and any(
        f'"{name}":' in attributes for name in (_PREVIOUS_PART_ID, _PREVIOUS_LINK)
    )


def _source_of(row: Mapping[str, Any]) -> str | None:
    return next((value for name in _SOURCE_COLUMNS if (value := row.get(name))), None)


def _gateway_group(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _parse_object(row.get("attributes")).get("gateway")
    return found if isinstance(found, Mapping) else {}


def _is_rescued(row: Mapping[str, Any]) -> bool:
    attributes = row.get("attributes")
    if isinstance(attributes, str) and _RESCUED not in attributes:
        return False
    claude = _parse_object(attributes).get("claude")
    return isinstance(claude, Mapping) and claude.get("source") == PROMPT_HISTORY


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
        *("provider_subtype", "status"),
    ),
    marker_column="attributes",
    may_be_live=_may_be_live,
    may_be_live_sql=f"(instr(attributes, '{_LIVE}') > 0 OR instr(attributes, '{_RESCUED}') > 0) "
    f"AND instr(attributes, '{_SETTLED}') = 0",
    match_keys=_match_keys,
    previous_keys=_previous_keys,
    settle=_settle,
    link_column="previous_message_id",
    relink=_relink,
    is_patched=_is_patched,
)
