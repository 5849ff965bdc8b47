"""The Responses dialect: `/v1/responses` and `/backend-api/codex/responses`, which Codex and other clients use.

Each item becomes one part, as it is one line of a rollout. The response is the `output` of the JSON body or is rebuilt
from the events: `response.output_item.done`, the content of `response.completed`, and the deltas of truncated items.
Items without a row in an import (`items.says`) have none here either; they are counted under the import's reasons.

Newer versions of Codex send every item's id in every request; then it is the message id, in the rollout and here. Other
clients often send back the ids of responses but give their own messages none; then ids are not used in any of their
requests. Thread and session are in the body's `client_metadata`, else in the header x-codex-turn-metadata, else in
headers of their own.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.project import failures
from hypaware.capture.project.anthropic import begins_with
from hypaware.capture.project.client import sender_of
from hypaware.capture.project.sides import kind_of_responses
from hypaware.capture.project.turn import Answer, Piece, Turn
from hypaware.capture.project.unsaid import UnsaidItems
from hypaware.capture.project.values import digest, joined_texts, mapping, parsed, sequence, text
from hypaware.clients.codex import items
from hypaware.clients.codex.usage import Figure, figure

DIALECT = "openai_responses"

_ENVIRONMENT = "<environment_context>"
_CWD = re.compile(r"<cwd>([^<]+)</cwd>")
_FLEETING = (_ENVIRONMENT, "<user_instructions>", "# AGENTS.md instructions")
_DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
# The item that a delta continues if no event started it.
_BEGUN: dict[str, dict[str, Any]] = {"text": {"type": "message", "role": "assistant"}, "summary": {"type": "reasoning"}}
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}


def read(decoded: Decoded) -> Turn:
    body, sender, headers = mapping(decoded.request), sender_of(decoded), decoded.request_headers
    metadata = _turn_metadata(body, headers)
    input_items = _shown(body.get("input"))
    is_codex = sender.name == "codex"
    uses_ids = _uses_ids(input_items, is_codex)
    session = text(metadata.get("session_id")) or text(headers.get("session-id")) or text(headers.get("session_id"))
    thread = text(metadata.get("thread_id")) or text(headers.get("thread-id")) or text(headers.get("conversation_id"))
    if session is None and thread is None:
        session = _unnamed(body)
    skipped = UnsaidItems()
    return Turn(
        dialect=DIALECT,
        kind=kind_of_responses(decoded.path, metadata.get("request_kind")),
        session_id=session or thread or "",
        conversation_id=(thread or session) if is_codex else thread,
        history=[_piece(item, uses_ids, None) for item in input_items if items.says(item)],
        skipped=skipped.in_request(input_items),
        response=_answer(decoded, uses_ids, skipped),
        client_name=sender.name,
        client_version=sender.version,
        system_text=text(body.get("instructions")),
        tools=body.get("tools") or None,
        columns={"model": text(body.get("model"))}
        | (_codex_columns(metadata, headers, input_items) if is_codex else {}),
        attributes={"codex": _codex_attributes(metadata, headers, session, thread)} if is_codex else {},
    )


def _uses_ids(input_items: list[dict[str, Any]], is_codex: bool) -> bool:
    """Return whether ids identify items. Each request must decide alone, because earlier ones may be forgotten."""
    has_ids = [items.own_id(item) is not None for item in input_items if items.says(item)]
    return any(has_ids) if is_codex else bool(has_ids) and all(has_ids)


def _turn_metadata(body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the client's metadata of the turn; the body takes precedence over the header."""
    given = mapping(body.get("client_metadata"))
    inner = mapping(parsed(given.get("x-codex-turn-metadata")) or parsed(headers.get("x-codex-turn-metadata")))
    return inner | {name: value for name, value in given.items() if value is not None}


def _unnamed(body: dict[str, Any]) -> str:
    conversation = body.get("conversation")
    conversation = (
        text(conversation)
        or text(mapping(conversation).get("id"))
        or text(mapping(body.get("metadata")).get("session_id"))
    )
    return conversation or digest(DIALECT, *begins_with(body.get("instructions"), _shown(body.get("input"))))


def _codex_columns(
    metadata: dict[str, Any], headers: Mapping[str, str], input_items: list[dict[str, Any]]
) -> dict[str, Any]:
    source, (folder, workspace) = text(metadata.get("thread_source")), _workspace(metadata)
    parent = text(headers.get("x-codex-parent-thread-id")) or text(metadata.get("parent_thread_id"))
    return {
        "conversation_source": "codex",
        "cwd": _folder(input_items) or folder,
        "head_sha": text(workspace.get("latest_git_commit_hash")),
        "entrypoint": text(headers.get("originator")),
        "user_type": source,
        "permission_mode": text(metadata.get("sandbox_mode")),
        "is_sidechain": None if source is None else source == "subagent",
        "parent_thread_id": parent,
    }


def _codex_attributes(
    metadata: dict[str, Any], headers: Mapping[str, str], session: str | None, thread: str | None
) -> dict[str, Any]:
    folder, workspace = _workspace(metadata)
    has_changes = workspace.get("has_changes")
    attributes = {
        "session_id": session or thread,
        "thread_id": thread if thread != (session or thread) else None,
        "workspace": folder,
        "git_commit": text(workspace.get("latest_git_commit_hash")),
        "sandbox": text(metadata.get("sandbox_mode")),
        "originator": text(headers.get("originator")),
        "thread_source": text(metadata.get("thread_source")),
        "has_changes": has_changes if isinstance(has_changes, bool) else None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _folder(input_items: list[dict[str, Any]]) -> str | None:
    """Return the working directory that the client stated last; outside of a repository nothing else names it."""
    for item in reversed(input_items):
        content = joined_texts(item.get("content")) if item.get("role") == "user" else None
        if content and content.startswith(_ENVIRONMENT) and (match := _CWD.search(content)):
            return html.unescape(match[1])
    return None


def _workspace(metadata: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the only folder that the turn works in, and its properties."""
    workspaces = mapping(metadata.get("workspaces"))
    if len(workspaces) != 1:
        return None, {}
    folder, properties = next(iter(workspaces.items()))
    return folder, mapping(properties)


def _shown(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    input_items = [item for item in sequence(given) if isinstance(item, dict)]
    # The short form of a message has no type.
    return [item if "type" in item else {"type": "message", **item} for item in input_items]


def _piece(item: dict[str, Any], uses_ids: bool, index: int | None) -> Piece:
    dropped: Counter[str] = Counter()
    role, content = items.said(item, dropped)
    own_id = items.own_id(item)
    kind, text_value = item["type"], joined_texts(item.get("content")) or ""
    return Piece(
        role=role,
        content=content,
        native_id=own_id if uses_ids else None,
        assigned_id=None if uses_ids else own_id,
        unique_id=text(item.get("call_id")),
        ephemeral=role in ("system", "developer") or (kind == "message" and text_value.startswith(_FLEETING)),
        is_reasoning=kind == "reasoning",
        block_index=index,
        provider_type=kind,
        dropped=dropped,
    )


def _answer(decoded: Decoded, uses_ids: bool, skipped: UnsaidItems) -> Answer:
    if decoded.events is not None:
        rebuilt = _Rebuilt(decoded.events)
        response, output, error = rebuilt.response, rebuilt.output(), rebuilt.error
    else:
        response = mapping(decoded.response)
        output, error = sequence(response.get("output")), None
    status = response.get("status")
    ended = status in ("completed", "incomplete")
    if error is None and not ended and not (decoded.events is None and output):
        error = {"error": response.get("error") or response.get("detail")} if response.get("error") else {}
        if decoded.events is None:
            error = response
    output_items = [(_of_model(item), index) for index, item in enumerate(output) if isinstance(item, dict)]
    recorded = [(item, index) for item, index in output_items if items.says(item)]
    carriers = [number for number, (item, _) in enumerate(recorded) if items.carries_usage(item)]
    if error is None:
        reason = mapping(response.get("incomplete_details")).get("reason") if status == "incomplete" else None
        finish_reason = {"max_output_tokens": "length"}.get(str(reason), reason)
        outcome = Answer(finish_reason=finish_reason, complete=status == "completed")
    else:
        outcome = failures.answer(decoded, error)
    return replace(
        outcome,
        parts=[_piece(item, uses_ids, index) for item, index in recorded],
        skipped=skipped.in_response(item for item in output if isinstance(item, dict)),
        api_id=text(response.get("id")),
        model=response.get("model"),
        usage=usage_of(response.get("usage")),
        usage_index=carriers[-1] if carriers else None,
    )


def _of_model(item: dict[str, Any]) -> dict[str, Any]:
    """Make the assistant the role of a message in a response, whether it says so or not."""
    return {"role": "assistant", **item} if item.get("type") == "message" else item


def usage_of(given: Any) -> dict[str, int] | None:
    """Return the token counts of both OpenAI dialects under the table's names."""
    reported = mapping(given)
    if not reported:
        return None
    input_details = mapping(reported.get("input_tokens_details") or reported.get("prompt_tokens_details"))
    output_details = mapping(reported.get("output_tokens_details") or reported.get("completion_tokens_details"))
    figures: Figure | None = figure(
        {
            "input_tokens": reported.get("input_tokens", reported.get("prompt_tokens")),
            "cached_input_tokens": input_details.get("cached_tokens"),
            "output_tokens": reported.get("output_tokens", reported.get("completion_tokens")),
            "reasoning_output_tokens": output_details.get("reasoning_tokens"),
            "total_tokens": reported.get("total_tokens"),
        }
    )
    return None if figures is None else figures.as_usage()


class _Rebuilt:
    """A response rebuilt from the events that arrived."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self.response: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._indexes: dict[str, int] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        for event in events:
            data = mapping(event.data)
            kind = data.get("type") or event.type
            if isinstance(kind, str):
                self._apply(kind, data)

    def _apply(self, kind: str, data: dict[str, Any]) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(item := data.get("item"), dict):
                index = self._index(data, items.own_id(item) or text(item.get("call_id")))
                self._items[index] = item
                if kind.endswith("done"):
                    self._done.add(index)
        elif (name := _DELTAS.get(kind)) is not None:
            if isinstance(more := data.get("delta"), str):
                self._texts.setdefault((self._index(data, name), name), []).append(more)
        elif kind == "error":
            self.error = data if "error" in data else {"error": data}
        elif isinstance(response := data.get("response"), dict):
            self.response = {"status": _ENDS[kind], **response} if kind in _ENDS else response
            if kind == "response.failed":
                self.error = {"error": response.get("error")}

    def _index(self, data: dict[str, Any], name: str | None) -> int:
        """Return the item's index in the output, or a number per distinguishable item if the provider sends none."""
        index = data.get("output_index")
        if isinstance(index, int):
            return index
        item_key = text(data.get("item_id")) or name or f"#{len(self._indexes)}"
        return self._indexes.setdefault(item_key, len(self._indexes))

    def output(self) -> list[Any]:
        if output := sequence(self.response.get("output")):
            return output
        for (index, name), more in self._texts.items():
            item = self._items.get(index) or (None if self._done else _BEGUN.get(name))
            if item is not None and index not in self._done:
                self._items[index] = _with(item, name, "".join(more))
        return [self._items[index] for index in sorted(self._items)]


def _with(item: dict[str, Any], name: str, text_value: str) -> dict[str, Any]:
    """Add the text of its deltas to an unfinished item."""
    if name == "text":
        return {**item, "content": [{"type": "output_text", "text": text_value}]}
    return {**item, name: [{"type": "summary_text", "text": text_value}] if name == "summary" else text_value}
