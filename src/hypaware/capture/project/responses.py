"""The Responses dialect: `/v1/responses` and `/backend-api/codex/responses`, as Codex and others speak it.

A piece per item, as a rollout has a line per item. The answer is the JSON body's `output`, or rebuilt from the events:
`response.output_item.done`, what `response.completed` holds, and for items that were cut short their deltas.
What the import makes no row of (`items.says`), nobody makes one of here: it is counted, under the import's reasons.
Newer Codex shows every item's id in every request: then it is the message's id, in a rollout and here. Other clients
often show back the ids of answers and give their own messages none: then ids name nothing, in any of their requests.
Thread and session stand in the body's `client_metadata`, else in the header x-codex-turn-metadata, else in headers of
their own.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping
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
# What a delta continues, where nobody said that it begins.
_BEGUN: dict[str, dict[str, Any]] = {"text": {"type": "message", "role": "assistant"}, "summary": {"type": "reasoning"}}
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}


def read(decoded: Decoded) -> Turn:
    body, sender, headers = mapping(decoded.request), sender_of(decoded), decoded.request_headers
    told = _turn_metadata(body, headers)
    shown = _shown(body.get("input"))
    is_codex = sender.name == "codex"
    keeps_ids = _keeps_ids(shown, is_codex)
    session = text(told.get("session_id")) or text(headers.get("session-id")) or text(headers.get("session_id"))
    thread = text(told.get("thread_id")) or text(headers.get("thread-id")) or text(headers.get("conversation_id"))
    if session is None and thread is None:
        session = _unnamed(body)
    unsaid = UnsaidItems()
    return Turn(
        dialect=DIALECT,
        kind=kind_of_responses(decoded.path, told.get("request_kind")),
        session_id=session or thread or "",
        conversation_id=(thread or session) if is_codex else thread,
        history=[_piece(item, keeps_ids, None) for item in shown if items.says(item)],
        unsaid=unsaid.shown(shown),
        answer=_answer(decoded, keeps_ids, unsaid),
        client_name=sender.name,
        client_version=sender.version,
        system_text=text(body.get("instructions")),
        tools=body.get("tools") or None,
        columns={"model": text(body.get("model"))} | (_codex_columns(told, headers, shown) if is_codex else {}),
        attributes={"codex": _codex_attributes(told, headers, session, thread)} if is_codex else {},
    )


def _keeps_ids(shown: list[dict[str, Any]], is_codex: bool) -> bool:
    """Whether ids are names: each request by itself has to say the same, since what was before may be forgotten."""
    given = [items.own_id(item) is not None for item in shown if items.says(item)]
    return any(given) if is_codex else bool(given) and all(given)


def _turn_metadata(body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """What the client says of the turn, in the body's words first."""
    given = mapping(body.get("client_metadata"))
    inner = mapping(parsed(given.get("x-codex-turn-metadata")) or parsed(headers.get("x-codex-turn-metadata")))
    return inner | {name: value for name, value in given.items() if value is not None}


def _unnamed(body: dict[str, Any]) -> str:
    named = body.get("conversation")
    named = text(named) or text(mapping(named).get("id")) or text(mapping(body.get("metadata")).get("session_id"))
    return named or digest(DIALECT, *begins_with(body.get("instructions"), _shown(body.get("input"))))


def _codex_columns(told: dict[str, Any], headers: Mapping[str, str], shown: list[dict[str, Any]]) -> dict[str, Any]:
    source, (folder, workspace) = text(told.get("thread_source")), _workspace(told)
    parent = text(headers.get("x-codex-parent-thread-id")) or text(told.get("parent_thread_id"))
    return {
        "conversation_source": "codex",
        "cwd": _folder(shown) or folder,
        "head_sha": text(workspace.get("latest_git_commit_hash")),
        "entrypoint": text(headers.get("originator")),
        "user_type": source,
        "permission_mode": text(told.get("sandbox_mode")),
        "is_sidechain": None if source is None else source == "subagent",
        "parent_thread_id": parent,
    }


def _codex_attributes(
    told: dict[str, Any], headers: Mapping[str, str], session: str | None, thread: str | None
) -> dict[str, Any]:
    folder, workspace = _workspace(told)
    has_changes = workspace.get("has_changes")
    found = {
        "session_id": session or thread,
        "thread_id": thread if thread != (session or thread) else None,
        "workspace": folder,
        "git_commit": text(workspace.get("latest_git_commit_hash")),
        "sandbox": text(told.get("sandbox_mode")),
        "originator": text(headers.get("originator")),
        "thread_source": text(told.get("thread_source")),
        "has_changes": has_changes if isinstance(has_changes, bool) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _folder(shown: list[dict[str, Any]]) -> str | None:
    """Where the client says that it is at work, the last time it says so; outside of a repository nothing else does."""
    for item in reversed(shown):
        said = joined_texts(item.get("content")) if item.get("role") == "user" else None
        if said and said.startswith(_ENVIRONMENT) and (found := _CWD.search(said)):
            return html.unescape(found[1])
    return None


def _workspace(told: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The one folder that the turn works in, and what is known of it."""
    workspaces = mapping(told.get("workspaces"))
    if len(workspaces) != 1:
        return None, {}
    folder, about = next(iter(workspaces.items()))
    return folder, mapping(about)


def _shown(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    shown = [item for item in sequence(given) if isinstance(item, dict)]
    # The short form of a message leaves its type out.
    return [item if "type" in item else {"type": "message", **item} for item in shown]


def _piece(item: dict[str, Any], keeps_ids: bool, index: int | None) -> Piece:
    lost: Counter[str] = Counter()
    role, content = items.said(item, lost)
    own_id = items.own_id(item)
    kind, said = item["type"], joined_texts(item.get("content")) or ""
    return Piece(
        role=role,
        content=content,
        native_id=own_id if keeps_ids else None,
        given_id=None if keeps_ids else own_id,
        strong_id=text(item.get("call_id")),
        fleeting=role in ("system", "developer") or (kind == "message" and said.startswith(_FLEETING)),
        thought=kind == "reasoning",
        block_index=index,
        provider_type=kind,
        lost=lost,
    )


def _answer(decoded: Decoded, keeps_ids: bool, unsaid: UnsaidItems) -> Answer:
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
    said = [(_of_model(item), index) for index, item in enumerate(output) if isinstance(item, dict)]
    made = [(item, index) for item, index in said if items.says(item)]
    carriers = [number for number, (item, _) in enumerate(made) if items.carries_usage(item)]
    failed = Answer() if error is None else failures.answer(decoded, error)
    reason = mapping(response.get("incomplete_details")).get("reason") if status == "incomplete" else None
    return Answer(
        pieces=[_piece(item, keeps_ids, index) for item, index in made],
        unsaid=unsaid.answered(item for item in output if isinstance(item, dict)),
        api_id=text(response.get("id")),
        model=response.get("model"),
        usage=usage_of(response.get("usage")),
        finish_reason="error" if failed.failed else {"max_output_tokens": "length"}.get(str(reason), reason),
        complete=status == "completed" and not failed.failed,
        carrier=carriers[-1] if carriers else None,
        error_code=failed.error_code,
        error_message=failed.error_message,
        failed=failed.failed,
    )


def _of_model(item: dict[str, Any]) -> dict[str, Any]:
    """A message in an answer is the assistant's, whether it says so or not."""
    return {"role": "assistant", **item} if item.get("type") == "message" else item


def usage_of(given: Any) -> dict[str, int] | None:
    """Counts of both OpenAI dialects, under the table's names."""
    noted = mapping(given)
    if not noted:
        return None
    within = mapping(noted.get("input_tokens_details") or noted.get("prompt_tokens_details"))
    of_output = mapping(noted.get("output_tokens_details") or noted.get("completion_tokens_details"))
    counted: Figure | None = figure(
        {
            "input_tokens": noted.get("input_tokens", noted.get("prompt_tokens")),
            "cached_input_tokens": within.get("cached_tokens"),
            "output_tokens": noted.get("output_tokens", noted.get("completion_tokens")),
            "reasoning_output_tokens": of_output.get("reasoning_tokens"),
            "total_tokens": noted.get("total_tokens"),
        }
    )
    return None if counted is None else counted.as_usage()


class _Rebuilt:
    """A response put together from its events, as far as they came."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self.response: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._places: dict[str, int] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}
        for event in events:
            data = mapping(event.data)
            kind = data.get("type") or event.type
            if isinstance(kind, str):
                self._take(kind, data)

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(item := data.get("item"), dict):
                index = self._place(data, items.own_id(item) or text(item.get("call_id")))
                self._items[index] = item
                if kind.endswith("done"):
                    self._done.add(index)
        elif (name := _DELTAS.get(kind)) is not None:
            if isinstance(more := data.get("delta"), str):
                self._grown.setdefault((self._place(data, name), name), []).append(more)
        elif kind == "error":
            self.error = data if "error" in data else {"error": data}
        elif isinstance(response := data.get("response"), dict):
            self.response = {"status": _ENDS[kind], **response} if kind in _ENDS else response
            if kind == "response.failed":
                self.error = {"error": response.get("error")}

    def _place(self, data: dict[str, Any], name: str | None) -> int:
        """Its number in the output. Where a provider does not say it: one for each item that can be told apart."""
        index = data.get("output_index")
        if isinstance(index, int):
            return index
        known = text(data.get("item_id")) or name or f"#{len(self._places)}"
        return self._places.setdefault(known, len(self._places))

    def output(self) -> list[Any]:
        if whole := sequence(self.response.get("output")):
            return whole
        for (index, name), more in self._grown.items():
            begun = self._items.get(index) or (None if self._done else _BEGUN.get(name))
            if begun is not None and index not in self._done:
                self._items[index] = _with(begun, name, "".join(more))
        return [self._items[index] for index in sorted(self._items)]


def _with(item: dict[str, Any], name: str, said: str) -> dict[str, Any]:
    """An unfinished item with what its deltas said."""
    if name == "text":
        return {**item, "content": [{"type": "output_text", "text": said}]}
    return {**item, name: [{"type": "summary_text", "text": said}] if name == "summary" else said}
