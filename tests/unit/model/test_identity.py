"""Who a message is when its client gave it no id."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hypaware.model.exchange import Exchange, Message
from hypaware.model.expand import Occurrences, expand, fallback_id, scope_of


def test_an_identity_is_the_one_that_the_original_gave() -> None:
    """Rows of an older installation must meet their own again: (session, role, content) → id, as it was recorded."""
    session = "6f94fccb-0793-4b1a-90fa-54c572ee776a"
    assert fallback_id(session, "system", "Today's date is 2026-11-15.") == "adac24f7cc666a5a"


def test_text_and_a_block_of_that_text_say_the_same() -> None:
    assert fallback_id("s", "user", "a") == fallback_id("s", "user", [{"type": "text", "text": "a"}])
    assert fallback_id("s", "user", ["a"]) == fallback_id("s", "user", "a")


@pytest.mark.parametrize("fleeting", ["cache_control", "caller"])
def test_what_a_client_adds_for_a_moment_is_no_part_of_it(fleeting: str) -> None:
    block = {"type": "text", "text": "a"}
    assert fallback_id("s", "user", [block | {fleeting: {"type": "ephemeral"}}]) == fallback_id("s", "user", [block])


@pytest.mark.parametrize(
    "other",
    [("t", "user", "a"), ("s", "assistant", "a"), ("s", "user", "b"), ("s", "user", "a", 1), ("s:x", "user", "a")],
)
def test_where_who_what_and_how_often_make_the_identity(other: Any) -> None:
    assert fallback_id(*other) != fallback_id("s", "user", "a")


def test_the_conversation_then_the_session_is_the_scope_and_the_agent_joins_it() -> None:
    assert scope_of("s") == "s"
    assert scope_of("s", "c") == "c"
    assert scope_of("s", None, "a") == "s:a"
    assert scope_of("s", "c", "a") == "c:a"
    assert scope_of("s", "", 7) == "s"


@pytest.mark.hazard(53)
def test_the_same_words_again_are_another_message_from_the_second_on() -> None:
    counted = Occurrences()
    assert [counted.before("s", "user", "go on") for _ in range(3)] == [0, 1, 2]
    assert counted.before("s", "user", "stop") == 0
    assert counted.before("t", "user", "go on") == 0


@pytest.mark.hazard(53)
def test_a_makers_own_count_is_taken_whatever_the_order() -> None:
    def ids(*occurrences: int | None) -> list[str]:
        messages = [
            Message(role="user", content="go on", created_at="2026-11-15T08:00:00Z", occurrence=each)
            for each in occurrences
        ]
        exchange = Exchange(provider="p", session_id="s", client_name="c", messages=messages)
        return [row["message_id"] for row in expand(exchange, gateway={}, skipped=Counter())]

    assert ids(1, 0) == ids(0, 1)[::-1] == ids(None, None)[::-1]


@pytest.mark.parametrize("content", [[{"type": "text", "text": "\ud800"}], [{"type": "x", "n": float("nan")}]])
def test_content_that_has_no_canonical_text_has_an_identity_too(content: Any) -> None:
    assert fallback_id("s", "user", content) == fallback_id("s", "user", content)
    assert fallback_id("s", "user", content) != fallback_id("s", "user", "")
