"""Classification of requests that are not part of the conversation: titles, token counts, warm-ups, summaries.

They share the session's id and often its text. They produce no rows; the raw exchange holds their kind and cost. A
request is classified only by a marker that its client is known to send. Any other request counts as a turn, so that no
guess ever drops what a user said.
"""

from __future__ import annotations

from typing import Any

from hypaware.capture.project.turn import Kind
from hypaware.capture.project.values import joined_texts, mapping, sequence

SUMMARY_BEGINS = "This session is being continued from a previous conversation"
"""How the first message begins after Claude Code has compacted its history."""

_SUMMARY_WANTED = "Your task is to create a detailed summary of the conversation"
_SUMMARY_ASKED = (_SUMMARY_WANTED, "CRITICAL: Respond with TEXT ONLY")
_TITLE_MARKS = ("You are naming a coding session", "Summarize this coding conversation in under 50 characters")
_TITLE_WANTED = ("title for the following conversation", "<session>\n")
_SIDE_MARKS = (
    "Extract any file paths that this command reads or modifies",
    "You are an expert at analyzing git history",
    "Your task is to process Bash commands",
    "Analyze if this message indicates a new conversation topic",
)


def kind_of_messages(path: str, body: dict[str, Any], is_claude: bool) -> Kind:
    """Classify a request of the Anthropic dialect."""
    if path.endswith("/count_tokens"):
        return Kind.COUNT_TOKENS
    if not is_claude:
        return Kind.TURN
    messages = sequence(body.get("messages"))
    asked = _last_text(messages)
    if asked.startswith(_SUMMARY_ASKED) and _SUMMARY_WANTED in asked:
        return Kind.COMPACTION
    if body.get("tools") or len(messages) != 1:
        return Kind.TURN
    if asked == "Warmup":
        return Kind.WARMUP
    system = joined_texts(body.get("system")) or ""
    if any(mark in system for mark in _TITLE_MARKS) or any(mark in asked for mark in _TITLE_WANTED):
        return Kind.TITLE
    counted = asked == "quota" and body.get("max_tokens") == 1
    return Kind.SIDE if counted or any(mark in system for mark in _SIDE_MARKS) else Kind.TURN


def kind_of_responses(path: str, request_kind: Any) -> Kind:
    """Classify a request of the Responses dialect; Codex states the kind itself."""
    if path.endswith("/responses/compact") or request_kind == "compaction":
        return Kind.COMPACTION
    return Kind.WARMUP if request_kind == "prewarm" else Kind.TURN


def _last_text(messages: list[Any]) -> str:
    content = mapping(messages[-1]).get("content") if messages else None
    if isinstance(content, str):
        return content
    texts = (mapping(block).get("text") for block in reversed(sequence(content)))
    return next((each for each in texts if isinstance(each, str)), "")
