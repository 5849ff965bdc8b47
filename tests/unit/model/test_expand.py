"""The expansion of an exchange into rows, rule by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hypaware.model.datasets import Row, coerce_row
from hypaware.model.expand import Exchange, Expansion, Message
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.history import readable

START = "2026-11-15T08:00:00.000000Z"


def exchange(*messages: Message, **more: Any) -> Exchange:
    given: dict[str, Any] = {"provider": "anthropic", "session_id": "s", "client_name": "claude", "started_at": START}
    return Exchange(**{**given, "messages": messages, **more})


def expanded(*messages: Message, **more: Any) -> list[Row]:
    return counted(*messages, **more)[0]


def counted(*messages: Message, gateway: dict[str, Any] | None = None, **more: Any) -> tuple[list[Row], Counter[str]]:
    skipped: Counter[str] = Counter()
    rows = list(Expansion(exchange(*messages, **more), gateway=gateway or {}, skipped=skipped).rows())
    for row in rows:
        coerce_row(AI_GATEWAY_MESSAGES, row, "g")
    return [readable(row) for row in rows], skipped


def says(content: Any, role: Any = "user", **more: Any) -> Message:
    return Message(role=role, content=content, **{"message_id": "m1", **more})


def part(block: Any, **more: Any) -> Row:
    """Return the only row of a message with one block."""
    (row,) = expanded(says([block], "assistant", **more))
    return row


# Parts


@pytest.mark.parametrize(
    ("block_type", "part_type"),
    [
        ("text", "text"),
        ("thinking", "reasoning"),
        ("redacted_thinking", "reasoning"),
        ("tool_use", "tool_call"),
        ("server_tool_use", "tool_call"),
        ("tool_result", "tool_result"),
        ("web_search_tool_result", "tool_result"),
        ("image", "image"),
        ("document", "file"),
        ("file", "file"),
        ("error", "error"),
        ("mcp_tool_use", "mcp_tool_use"),
        ("hologram", "hologram"),
    ],
)
def test_a_block_is_a_part_of_its_type(block_type: str, part_type: str) -> None:
    row = part({"type": block_type})
    assert (row["part_type"], row["provider_subtype"]) == (part_type, block_type)


def test_text_is_one_part_and_a_list_has_one_part_per_block() -> None:
    assert [row["content_text"] for row in expanded(says("one"))] == ["one"]
    rows = expanded(says([{"type": "text", "text": "one"}, "two", {"type": "image"}]))
    assert [(row["part_id"], row.get("content_text")) for row in rows] == [
        ("m1#0", "one"),
        ("m1#1", "two"),
        ("m1#2", None),
    ]


def test_a_subtype_set_by_the_client_is_kept() -> None:
    assert part({"type": "text", "text": "x"}, columns={"provider_subtype": "local_command"})["provider_subtype"] == (
        "local_command"
    )


def test_a_reasoning_part_has_its_text_and_signature() -> None:
    row = part({"type": "thinking", "thinking": "Hm.", "signature": "sig"})
    assert (row["content_text"], row["thinking_signature"]) == ("Hm.", "sig")
    assert part({"type": "redacted_thinking", "data": "xyz"})["content_text"] == "xyz"


def test_a_call_has_its_tool_and_arguments() -> None:
    row = part({"type": "tool_use", "id": "c1", "name": "Bash", "input": {"a": 1}, "caller": {"type": "direct"}})
    assert {name: row[name] for name in ("tool_name", "tool_call_id", "tool_args", "caller_type")} == {
        "tool_name": "Bash",
        "tool_call_id": "c1",
        "tool_args": {"a": 1},
        "caller_type": "direct",
    }
    assert "content_text" not in row


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("done", "done"),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", "b"], "a\nb"),
        ([{"type": "image"}], None),
        ([], None),
        (None, None),
        ({"type": "text", "text": "a"}, "a"),
    ],
)
def test_the_text_of_a_result_is_its_text_or_that_of_its_blocks(content: Any, text: str | None) -> None:
    row = part({"type": "tool_result", "tool_use_id": "c1", "content": content})
    assert row.get("content_text") == text
    assert (row["tool_call_id"], row["tool_result_for"]) == ("c1", "c1")


def test_a_result_records_whether_its_tool_failed() -> None:
    good = part({"type": "tool_result", "is_error": False})
    assert good["status"] == {"tool_status": "success"}
    assert "is_error" not in good
    bad = part({"type": "tool_result", "is_error": True})
    assert (bad["status"], bad["is_error"]) == ({"tool_status": "error"}, True)


def test_a_failed_server_tool_is_detected_by_its_content_type() -> None:
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    row = part({"type": "web_search_tool_result", "tool_use_id": "c1", "content": failed})
    assert row["status"] == {"tool_status": "error", "error_code": "max_uses_exceeded"}
    assert row["is_error"] is True


def test_a_result_has_the_tool_name_of_its_call_in_the_same_thread() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "Bash"}
    result = {"type": "tool_result", "tool_use_id": "c1"}
    rows = expanded(
        says([result], message_id="too early"),
        says([call], "assistant", message_id="call"),
        says([result], message_id="same thread"),
        says([result], message_id="other thread", columns={"agent_id": "a1"}),
    )
    named = {row["message_id"]: row.get("tool_name") for row in rows}
    assert named == {"too early": None, "call": "Bash", "same thread": "Bash", "other thread": None}


@pytest.mark.parametrize(
    "block", [{"message": "broke"}, {"text": "broke"}, {"error": "broke"}, {"error": {"message": "broke"}}]
)
def test_an_error_has_its_message(block: dict[str, Any]) -> None:
    row = part({"type": "error", **block})
    assert (row["content_text"], row["is_error"]) == ("broke", True)


# Messages without rows


@pytest.mark.parametrize("content", ["", [], None, {}, 7, [None, 7, [], {}], [{"type": ""}], [{"type": 7}]])
def test_empty_content_makes_no_row(content: Any) -> None:
    rows, skipped = counted(says(content))
    assert rows == []
    assert skipped == {"empty_content": 1}


@pytest.mark.parametrize("role", ["", None, 7, [], "\ud800"])
def test_a_message_without_a_role_makes_no_row(role: Any) -> None:
    rows, skipped = counted(says("Hello", role))
    assert rows == []
    assert skipped == {"no_role": 1}


def test_an_invalid_block_is_counted_and_the_others_keep_their_indexes() -> None:
    rows, skipped = counted(says([7, {"type": "text", "text": "x"}, {"no": "type"}]))
    assert [row["part_id"] for row in rows] == ["m1#1"]
    assert skipped == {"bad_block": 2}


def test_a_duplicate_id_is_one_message() -> None:
    rows, skipped = counted(says("first"), says("second"), says("third", message_id="m2"))
    assert [(row["content_text"], row["message_index"]) for row in rows] == [("first", 0), ("third", 1)]
    assert skipped == {"duplicate_message": 1}


def test_an_exchange_without_a_session_makes_no_rows() -> None:
    rows, skipped = counted(says("Hello"), session_id="")
    assert rows == []
    assert skipped == {"no_session": 1}


def test_messages_are_consumed_one_by_one() -> None:
    asked = []

    def messages() -> Iterator[Message]:
        for number in range(3):
            asked.append(number)
            yield says("Hello", message_id=f"m{number}")

    rows = Expansion(exchange(messages=messages()), gateway={}, skipped=Counter()).rows()
    next(rows)
    assert asked == [0]


# Messages that are not fresh


def test_a_message_that_is_not_fresh_still_counts_for_later_ones() -> None:
    call = [{"type": "tool_use", "id": "c1", "name": "Bash"}]
    rows, skipped = counted(
        says("continue", message_id=None, fresh=False),
        says(call, "assistant", message_id="call", fresh=False),
        says("", message_id="empty", fresh=False),
        says([{"type": "tool_result", "tool_use_id": "c1"}], message_id="result"),
        says("again", message_id="call"),
        says("continue", message_id=None),
    )
    result, again = rows
    assert (result["message_index"], result["tool_name"], result["previous_message_id"]) == (2, "Bash", ["call"])
    assert again["message_index"] == 3
    assert skipped == {"duplicate_message": 1}
    (alone,) = expanded(says("continue", message_id=None))
    assert again["message_id"] != alone["message_id"]


# Times


def test_times_are_written_in_canonical_form() -> None:
    (row,) = expanded(says("Hello", created_at="2026-11-15T10:00:00.5+02:00"))
    assert row["message_created_at"] == "2026-11-15T08:00:00.500000Z"
    assert "time_source" not in row["attributes"].get("gateway", {})


@pytest.mark.parametrize(
    ("started_at", "fallback", "time", "source"),
    [
        (START, ("2026-01-01T00:00:00Z", "file_mtime"), START, "session_start"),
        (None, ("2026-01-01T00:00:00Z", "file_name"), "2026-01-01T00:00:00.000000Z", "file_name"),
        ("garbage", ("2026-01-01T00:00:00Z", "file_mtime"), "2026-01-01T00:00:00.000000Z", "file_mtime"),
    ],
)
def test_a_message_without_a_time_records_the_origin_of_its_time(
    started_at: Any, fallback: Any, time: str, source: str
) -> None:
    (row,) = expanded(says("Hello"), started_at=started_at, fallback_time=fallback)
    assert row["message_created_at"] == row["conversation_started_at"] == time
    assert row["attributes"]["gateway"]["time_source"] == source


def test_without_any_time_there_is_no_row() -> None:
    rows, skipped = counted(says("Hello"), started_at=None)
    assert rows == []
    assert skipped == {"no_time": 1}


def test_a_conversation_without_a_start_time_starts_with_its_first_message() -> None:
    rows = expanded(
        says("a", created_at="2026-11-15T09:00:00Z", message_id="m1", fresh=False),
        says("b", created_at="2026-11-15T10:00:00Z", message_id="m2"),
        started_at=None,
    )
    assert [row["conversation_started_at"] for row in rows] == ["2026-11-15T09:00:00.000000Z"]


# Status, usage, attributes


@pytest.mark.parametrize(
    ("given", "told"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("pause_turn", "pause"), ("x", "x")],
)
def test_the_finish_reason_is_on_the_last_part(given: str, told: str) -> None:
    rows = expanded(says(["a", "b"], "assistant", finish_reason=given))
    assert [row.get("status") for row in rows] == [None, {"finish_reason": told}]


def test_only_messages_of_the_model_have_a_finish_reason() -> None:
    assert "status" not in expanded(says("a", "user", finish_reason="end_turn"))[0]


def test_an_error_of_the_message_is_on_its_last_part() -> None:
    rows = expanded(says(["a", "b"], "assistant", error_code="529", error_message="Overloaded"))
    assert [row.get("status") for row in rows] == [None, {"error_code": "529", "error_message": "Overloaded"}]
    assert [row.get("is_error") for row in rows] == [None, True]


def test_usage_is_on_the_last_part_only() -> None:
    rows = expanded(says(["a", "b"], "assistant", usage={"input_tokens": 3, "output_tokens": 7, "unknown": 9}))
    assert [row["attributes"].get("usage") for row in rows] == [None, {"input_tokens": 3, "output_tokens": 7}]


@pytest.mark.parametrize("layer", ["message", "exchange"])
def test_usage_cannot_be_set_through_attributes(layer: str) -> None:
    attributes = {"usage": {"input_tokens": 3}, "x": 1}
    of_message = attributes if layer == "message" else {}
    of_exchange = attributes if layer == "exchange" else {}
    rows, skipped = counted(says("a", attributes=of_message), attributes=of_exchange)
    assert rows[0]["attributes"].keys() == {"client", "gateway", "x"}
    assert skipped == {"bad_attributes": 1}


def test_attributes_always_name_the_client() -> None:
    assert expanded(says("a"), client_version="2.1")[0]["attributes"]["client"] == {"name": "claude", "version": "2.1"}
    assert expanded(says("a"))[0]["attributes"]["client"] == {"name": "claude", "version": None}


def test_attributes_are_merged_one_level_deep_and_later_ones_win() -> None:
    (row,) = expanded(
        says("a", attributes={"client": {"name": "m", "m": 1}, "x": {"m": 1, "both": "m", "deep": {"m": 1}}, "t": "m"}),
        attributes={"x": {"e": 1, "both": "e", "deep": {"e": 1}}, "gateway": {"source": "e", "e": 1}, "t": "e"},
        gateway={"source": "g"},
        client_version="2.1",
    )
    assert row["attributes"] == {
        "client": {"name": "m", "version": "2.1", "m": 1},
        "x": {"m": 1, "e": 1, "both": "e", "deep": {"e": 1}},
        "gateway": {"source": "g", "e": 1, "time_source": "session_start"},
        "t": "e",
    }


def test_gateway_attributes_merge_with_those_of_the_expansion() -> None:
    (row,) = expanded(says("a", message_id=None), gateway={"source": "backfill", "native_id": "s"})
    assert row["attributes"]["gateway"] == {
        "source": "backfill",
        "native_id": "s",
        "identity_source": "gateway_fallback",
        "time_source": "session_start",
    }


# Columns


def test_columns_of_a_message_override_those_of_the_exchange() -> None:
    rows = expanded(
        says("a", message_id="m1", columns={"model": "mine", "cwd": None}),
        says("b", message_id="m2"),
        columns={"model": "shared", "cwd": "/x"},
    )
    assert [(row["model"], row["cwd"]) for row in rows] == [("mine", "/x"), ("shared", "/x")]


@pytest.mark.parametrize("name", ["content_text", "part_id", "message_id", "attributes", "gateway_id", "nonsense"])
def test_a_computed_column_cannot_be_set(name: str) -> None:
    rows, skipped = counted(says("a", columns={name: "given"}), columns={name: "given"})
    assert rows[0].get(name) != "given"
    assert skipped == {"unknown_column": 2}


def test_a_column_of_the_wrong_type_is_left_out_and_counted() -> None:
    rows, skipped = counted(says("a", columns={"model": 7, "is_sidechain": "yes", "tools": {"x": float("nan")}}))
    assert not rows[0].keys() & {"model", "is_sidechain"}
    assert rows[0]["tools"] == {"x": None}
    assert skipped == {"bad_model": 1, "bad_is_sidechain": 1, "bad_tools": 1}


def test_a_lone_surrogate_costs_one_character() -> None:
    rows, skipped = counted(says("a\ud800b"))
    assert rows[0]["content_text"] == "a\ufffdb"
    assert skipped == {"bad_content_text": 1}


def test_null_columns_are_left_out() -> None:
    assert None not in expanded(says("a", columns={"model": None}), conversation_id=None)[0].values()
