"""A recorded session as the writers of transcripts see it: its rows by message, and the conversation in them.

A session is *restored* if its own client gets it back: same session, same ids of messages, so an import of the written
transcript finds only rows that the lake has. It is *carried over* if another client gets it: a new session, with the
conversation alone.

`Losses` counts what a transcript cannot hold, by the names in `LOSSES`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson

from hypaware.index.prompts import is_client_note, is_command
from hypaware.model.datasets import Row

Losses = Counter[str]
LOSSES = {
    "thinking": "part of the model's thinking|parts of the model's thinking",
    "image": "image or file, replaced by a note|images and files, replaced by notes",
    "client_note": "note of the client, such as the folder and the date|notes of the client, such as the folder",
    "system": "system message|system messages",
    "subagent": "message of subagents; what they returned is kept|messages of subagents; what they returned is kept",
    "compacted": "message before the last compaction, which a summary replaces|"
    "messages before the last compaction, which a summary replaces",
    "branch": "message of a branch that was left|messages of branches that were left",
    "error": "error of the API|errors of the API",
    "orphan": "result of a tool whose call is not recorded|results of tools whose calls are not recorded",
    "other": "part of a kind that has no place in the transcript|parts of kinds that have no place in the transcript",
}
"""What can be lost, in words: one, several."""
NOT_RECORDED = "(not recorded)"
"""Stands for the result of a call that has none."""
IMAGE_NOTE = "(an image or a file, which was not recorded)"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOOL_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_MAX_TOOL_NAME = 64


@dataclass(frozen=True)
class RecordedMessage:
    rows: tuple[Row, ...]
    """Its parts, by their index. JSON columns are text, columns without a value are missing."""

    @property
    def id(self) -> str:
        return str(self.rows[0]["message_id"])

    @property
    def role(self) -> str:
        return str(self.rows[0]["role"])

    @property
    def at(self) -> str:
        """UTC, in milliseconds if that is all it has, as clients write it."""
        moment = str(self.rows[0]["message_created_at"])
        return f"{moment[:-4]}Z" if moment.endswith("000Z") else moment

    def get(self, column: str) -> Any:
        """Return a column that all parts of a message share."""
        return self.rows[0].get(column)

    @cached_property
    def previous(self) -> str | None:
        found = parse_json(self.get("previous_message_id"))
        return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None

    @cached_property
    def attributes(self) -> dict[str, Any]:
        found = parse_json(self.get("attributes"))
        return found if isinstance(found, dict) else {}

    @cached_property
    def frame(self) -> dict[str, Any]:
        found = parse_json(self.get("raw_frame"))
        return found if isinstance(found, dict) else {}

    @cached_property
    def usage(self) -> dict[str, int]:
        """The token counts on its parts."""
        total: Counter[str] = Counter()
        for row in self.rows:
            groups = parse_json(row.get("attributes"))
            counts = groups.get("usage") if isinstance(groups, dict) else None
            if isinstance(counts, dict):
                total.update({name: count for name, count in counts.items() if type(count) is int})
        return dict(total)

    @property
    def is_subagent(self) -> bool:
        return bool(self.get("is_sidechain") or self.get("agent_id"))


@dataclass(frozen=True)
class RecordedSession:
    session_id: str
    client: str
    messages: tuple[RecordedMessage, ...]
    """In the order in which they were said. The messages that a fork begins with are among them."""
    cwd: str | None = None
    """The folder in which the session is resumed."""
    title: str | None = None
    """The one that the user or the client gave it."""


@dataclass(frozen=True)
class TranscriptFile:
    path: Path
    content: bytes


@dataclass(frozen=True)
class Transcript:
    """The files of a session in the format of a client. The last one makes the client see the session."""

    session_id: str
    files: tuple[TranscriptFile, ...]
    messages: int
    losses: Losses = field(default_factory=Counter)


@dataclass(frozen=True)
class CarriedPart:
    kind: Literal["user", "assistant", "call", "result"]
    at: str
    text: str = ""
    call_id: str = ""
    tool: str = ""
    arguments: Any = None
    is_error: bool = False


def group_messages(rows: Sequence[Row]) -> tuple[RecordedMessage, ...]:
    """Return the messages of rows, in the order of their first rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["message_id"], []).append(row)
    return tuple(RecordedMessage(tuple(sorted(each, key=lambda row: row["part_index"]))) for each in found.values())


def is_uuid(name: str) -> bool:
    return _UUID.fullmatch(name) is not None


def parse_json(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def list_output_texts(text: str) -> list[str] | None:
    """Return the texts of a result that Codex wrote as a list, which is recorded as JSON; None for any other result."""
    found = parse_json(text) if text.startswith('[{"') else None
    if not isinstance(found, list) or orjson.dumps(found).decode() != text:
        return None
    texts = [each["text"] for each in found if _is_input_text(each)]
    return texts if len(texts) == len(found) else None


def _is_input_text(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and item == {"type": "input_text", "text": item.get("text")}
        and isinstance(item["text"], str)
    )


def list_carried_parts(session: RecordedSession, losses: Losses) -> list[CarriedPart]:
    """Return the conversation without what only its own client understands.

    It is the thread of the last message, after its last compaction. Every call is followed by its results.
    """
    parts: list[CarriedPart] = []
    for message in _select_thread(session.messages, losses):
        for row in message.rows:
            parts.extend(_carry(message, row, losses))
    return _pair_calls(parts, losses)


def _select_thread(messages: Sequence[RecordedMessage], losses: Losses) -> list[RecordedMessage]:
    """Return the messages that lead to the last one, from the summary of the last compaction on.

    They follow their links, not their times: a message can be older than the one that it follows.
    """
    main = [each for each in messages if not each.is_subagent]
    losses["subagent"] += len(messages) - len(main)
    by_id = {each.id: each for each in main}
    chain: list[str] = []
    seen: set[str] = set()
    current = main[-1] if main else None
    while current is not None and current.id not in seen:
        seen.add(current.id)
        chain.append(current.id)
        current = None if current.get("is_compact_summary") else by_id.get(current.previous or "")
    places = {message_id: place for place, message_id in enumerate(reversed(chain))}
    # Results of parallel calls are siblings in the transcript, and so are the parts of one response.
    responses = {name for each in main if each.id in places and (name := each.frame.get("message_id"))}
    calls = {row.get("tool_call_id") for each in main if _belongs(each, places, responses) for row in each.rows}
    kept: list[tuple[int, RecordedMessage]] = []
    for each in main:
        if _belongs(each, places, responses) or any(row.get("tool_result_for", 0) in calls for row in each.rows):
            kept.append((_find_place(each, by_id, places), each))
    first = by_id[chain[-1]] if chain else None
    is_compacted = first is not None and first.get("is_compact_summary")
    older = main.index(first) - sum(each.at < first.at for _, each in kept) if first is not None and is_compacted else 0
    losses["compacted"] += older
    losses["branch"] += len(main) - len(kept) - older
    return [message for _, message in sorted(kept, key=lambda each: each[0])]


def _find_place(message: RecordedMessage, by_id: Mapping[str, RecordedMessage], places: Mapping[str, int]) -> int:
    """Return the place of a message in the thread. One outside the thread follows the response that it belongs to."""
    seen: set[str] = set()
    current: RecordedMessage | None = message
    while current is not None and current.id not in places and current.id not in seen:
        seen.add(current.id)
        current = by_id.get(current.previous or "")
    if current is None or current.id not in places:
        return 0
    response = current.frame.get("message_id")
    if current is message or response is None:
        return places[current.id]
    return max(place for each, place in places.items() if by_id[each].frame.get("message_id") == response)


def _belongs(message: RecordedMessage, chain: Mapping[str, int], responses: set[Any]) -> bool:
    return message.id in chain or message.frame.get("message_id", 0) in responses


def _carry(message: RecordedMessage, row: Row, losses: Losses) -> Iterator[CarriedPart]:
    text, at = row.get("content_text") or "", message.at
    match row["part_type"]:
        case "text" if message.role == "assistant":
            if text.strip():
                yield CarriedPart("assistant", at, text)
        case "text" if message.role == "user" and not is_client_note(text) and not is_command(text):
            if text.strip():
                yield CarriedPart("user", at, text)
        case "text":
            losses["client_note" if message.role == "user" else "system"] += 1
        case "tool_call" if row.get("tool_call_id"):
            name = _TOOL_CHARACTERS.sub("_", row.get("tool_name") or "")[:_MAX_TOOL_NAME] or "tool"
            arguments = parse_json(row.get("tool_args"))
            yield CarriedPart("call", at, call_id=_clean_id(row["tool_call_id"]), tool=name, arguments=arguments)
        case "tool_result" if row.get("tool_result_for"):
            if row.get("content_text") is None:
                losses["image"] += 1
                text = IMAGE_NOTE
            text = "".join(list_output_texts(text) or [text])
            is_error = bool(row.get("is_error"))
            yield CarriedPart("result", at, text, _clean_id(row["tool_result_for"]), is_error=is_error)
        case "reasoning":
            losses["thinking"] += 1
        case "image" | "file":
            losses["image"] += 1
            yield CarriedPart("assistant" if message.role == "assistant" else "user", at, IMAGE_NOTE)
        case "error":
            losses["error"] += 1
        case _:
            losses["other"] += 1


def _clean_id(call_id: str) -> str:
    return _TOOL_CHARACTERS.sub("_", call_id)[:_MAX_TOOL_NAME]


def _pair_calls(parts: Sequence[CarriedPart], losses: Losses) -> list[CarriedPart]:
    """Put each result behind its call: providers reject a call without a result, and a result without a call."""
    results = {part.call_id: part for part in reversed(parts) if part.kind == "result"}
    calls = {part.call_id for part in parts if part.kind == "call"}
    losses["orphan"] += sum(part.kind == "result" and part.call_id not in calls for part in parts)
    paired: list[CarriedPart] = []
    waiting: list[CarriedPart] = []
    called: set[str] = set()
    for part in parts:
        if part.kind == "call":
            if part.call_id not in called:
                called.add(part.call_id)
                paired.append(part)
                missing = CarriedPart("result", part.at, NOT_RECORDED, part.call_id)
                waiting.append(results.get(part.call_id, missing))
            continue
        paired += waiting
        waiting = []
        if part.kind != "result":
            paired.append(part)
    return _in_order(paired + waiting)


def _in_order(parts: Sequence[CarriedPart]) -> list[CarriedPart]:
    """Return the parts with times that do not decrease, because readers sort by time."""
    ordered: list[CarriedPart] = []
    for part in parts:
        latest = max(part.at, ordered[-1].at) if ordered else part.at
        ordered.append(part if latest == part.at else replace(part, at=latest))
    return ordered
