"""Match keys: by which a row of the gateway and a row of a transcript are known to be the same part.

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
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical


def match_keys(row: Mapping[str, Any]) -> list[str]:
    """The keys of a stored row; JSON columns as text or as values. Empty: it can only meet itself."""
    kind, role = row.get("part_type"), row.get("role")
    if kind == "tool_call" and (call := row.get("tool_call_id")):
        return [f"call:{call}"]
    if kind == "tool_result" and (call := row.get("tool_result_for")):
        return [f"result:{call}"]
    if kind == "error":
        request = row.get("request_id")
        return [f"error:{request}"] if request else []
    part = _part(row)
    agent, live = row.get("agent_id"), is_live(row)
    said = [f"said:{role}:{agent or ''}:{part}"]
    if agent if not live else row.get("is_sidechain") is None:
        said.append(f"said:{role}:?:{part}")
    api_id = _object(row.get("raw_frame")).get("message_id")
    if role != "assistant" or not isinstance(api_id, str):
        return said
    exact = f"api:{api_id}:{part}"
    return [exact] if live else [exact, *said]


def is_live(row: Mapping[str, Any]) -> bool:
    """Whether the gateway made the row."""
    gateway = _object(row.get("attributes")).get("gateway")
    return isinstance(gateway, Mapping) and gateway.get("source") == "live"


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
