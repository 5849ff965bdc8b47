"""Fallback ids of messages without a client id."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hypaware.model.expand import Exchange, Expansion, Message
from hypaware.model.message_ids import Occurrences, compute_fallback_id, fallback_scope


def test_fallback_ids_equal_those_of_the_original() -> None:
    """Rows of older installations must get the same ids: (session, role, content) → recorded id."""
    session = "6f94fccb-0793-4b1a-90fa-54c572ee776a"
    assert compute_fallback_id(session, "system", "Today's date is 2026-11-15.") == "adac24f7cc666a5a"


def test_text_and_an_equal_text_block_have_the_same_id() -> None:
    assert compute_fallback_id("s", "user", "a") == compute_fallback_id("s", "user", [{"type": "text", "text": "a"}])
    assert compute_fallback_id("s", "user", ["a"]) == compute_fallback_id("s", "user", "a")


@pytest.mark.parametrize("fleeting", ["cache_control", "caller"])
def test_volatile_keys_do_not_change_the_id(fleeting: str) -> None:
    block = {"type": "text", "text": "a"}
    assert compute_fallback_id("s", "user", [block | {fleeting: {"type": "ephemeral"}}]) == compute_fallback_id(
        "s", "user", [block]
    )


@pytest.mark.parametrize(
    "other",
    [("t", "user", "a"), ("s", "assistant", "a"), ("s", "user", "b"), ("s", "user", "a", 1), ("s:x", "user", "a")],
)
def test_scope_role_content_and_occurrence_determine_the_id(other: Any) -> None:
    assert compute_fallback_id(*other) != compute_fallback_id("s", "user", "a")


def test_the_scope_is_the_conversation_or_session_and_the_agent() -> None:
    assert fallback_scope("s") == "s"
    assert fallback_scope("s", "c") == "c"
    assert fallback_scope("s", None, "a") == "s:a"
    assert fallback_scope("s", "c", "a") == "c:a"
    assert fallback_scope("s", "", 7) == "s"


@pytest.mark.hazard(53)
def test_a_repeated_message_gets_another_id() -> None:
    counted = Occurrences()
    assert [counted.add("s", "user", "go on") for _ in range(3)] == [0, 1, 2]
    assert counted.add("s", "user", "stop") == 0
    assert counted.add("t", "user", "go on") == 0


@pytest.mark.hazard(53)
def test_an_occurrence_counted_by_the_caller_is_used() -> None:
    def ids(*occurrences: int | None) -> list[str]:
        messages = [
            Message(role="user", content="go on", created_at="2026-11-15T08:00:00Z", occurrence=each)
            for each in occurrences
        ]
        exchange = Exchange(provider="p", session_id="s", client_name="c", messages=messages)
        return [row["message_id"] for row in Expansion(exchange, gateway={}, skipped=Counter()).rows()]

    assert ids(1, 0) == ids(0, 1)[::-1] == ids(None, None)[::-1]


@pytest.mark.parametrize("content", [[{"type": "text", "text": "\ud800"}], [{"type": "x", "n": float("nan")}]])
def test_content_without_canonical_text_has_a_fallback_id(content: Any) -> None:
    assert compute_fallback_id("s", "user", content) == compute_fallback_id("s", "user", content)
    assert compute_fallback_id("s", "user", content) != compute_fallback_id("s", "user", "")
