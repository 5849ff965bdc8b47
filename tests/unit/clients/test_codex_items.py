"""Conversion of each kind of Codex item."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.clients.codex import rollout
from hypaware.model.datasets import Row
from hypaware.model.expand import has_parts
from tests.support.codex_rollouts import BEGIN, answers, calls, imported, item, line, meta, says, thinks, turn
from tests.support.strategies import json_values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def only(folder: Path, *lines: Any) -> Row:
    """Return the only row of the given lines."""
    rows, _ = imported(folder, [*BEGIN, *lines])
    assert len(rows) == 2
    return rows[1]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_a_message_gives_its_text(folder: Path, kind: str) -> None:
    row = only(folder, item("message", role="assistant", content=[{"type": kind, "text": "Yes."}], id="m1"))

    assert (row["role"], row["part_type"], row["content_text"]) == ("assistant", "text", "Yes.")
    assert (row["message_id"], row["part_id"]) == ("m1", "m1#0")
    assert (row["provider_type"], row["provider_subtype"]) == ("message", "text")


def test_each_text_of_a_message_is_a_part_of_it(folder: Path) -> None:
    texts = [{"type": "input_text", "text": "one"}, {"type": "text", "text": "two"}]
    rows, _ = imported(folder, [meta(), turn(), item("message", role="user", content=texts)])

    assert [(row["part_index"], row["content_text"]) for row in rows] == [(0, "one"), (1, "two")]


def test_a_message_with_plain_text_content_gives_its_text(folder: Path) -> None:
    assert only(folder, item("message", role="user", content="Hello."))["content_text"] == "Hello."


@pytest.mark.parametrize("role", [None, "", " ", 7])
def test_a_message_without_a_role_belongs_to_the_user(folder: Path, role: Any) -> None:
    assert only(folder, item("message", role=role, content="Hello."))["role"] == "user"


def test_a_block_without_text_is_counted(folder: Path) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    rows, reading = imported(folder, [*BEGIN, item("message", content=[image, {"type": "text", "text": "See?"}])])

    assert [row["content_text"] for row in rows] == ["Do it.", "See?"]
    assert reading.skipped == {"block_without_text": 1}


@pytest.mark.parametrize("content", [None, [], "", [{"type": "input_text", "text": ""}], {}, 5])
def test_a_message_without_text_makes_no_row_and_is_counted(folder: Path, content: Any) -> None:
    rows, reading = imported(folder, [*BEGIN, item("message", role="assistant", content=content)])

    assert len(rows) == 1
    assert reading.skipped["empty_content"] == 1


@pytest.mark.parametrize(
    ("kind", "field"),
    [("function_call", "arguments"), ("custom_tool_call", "input"), ("custom_tool_call", "arguments")],
)
def test_a_call_is_a_tool_use_of_the_assistant(folder: Path, kind: str, field: str) -> None:
    row = only(folder, item(kind, name="shell", call_id="c1", id="fc_1", **{field: '{"cmd": ["ls", "-l"]}'}))

    assert (row["role"], row["part_type"], row["provider_type"]) == ("assistant", "tool_call", kind)
    assert (row["tool_name"], row["tool_call_id"], row["message_id"]) == ("shell", "c1", "fc_1")
    assert row["tool_args"] == {"cmd": ["ls", "-l"]}


@pytest.mark.parametrize("given", ["*** Begin Patch", "{half", '{"a": 1} and more'])
def test_arguments_that_are_not_json_stay_text(folder: Path, given: str) -> None:
    assert only(folder, item("custom_tool_call", name="apply_patch", call_id="c1", input=given))["tool_args"] == given


def test_arguments_that_are_not_text_are_unchanged(folder: Path) -> None:
    assert only(folder, item("function_call", name="f", call_id="c1", arguments={"a": 1}))["tool_args"] == {"a": 1}


def test_a_call_without_a_call_id_uses_its_own_id(folder: Path) -> None:
    row = only(folder, item("function_call", name="f", id="fc_1", arguments="{}"))
    assert row["tool_call_id"] == "fc_1"


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output", "local_shell_call_output"])
@pytest.mark.parametrize("field", ["output", "content", "text"])
def test_an_output_is_the_result_of_the_call_before_it(folder: Path, kind: str, field: str) -> None:
    rows, _ = imported(folder, [*BEGIN, calls("c1", name="shell"), item(kind, call_id="c1", **{field: "file.txt"})])
    row = rows[2]

    assert (row["role"], row["part_type"], row["provider_type"]) == ("tool", "tool_result", kind)
    assert (row["tool_name"], row["tool_result_for"], row["content_text"]) == ("shell", "c1", "file.txt")
    assert row["status"] == {"tool_status": "success"}


def test_an_output_that_is_not_text_is_stored_as_json(folder: Path) -> None:
    output = [{"type": "input_text", "text": "ä\n"}, {"big": 2**70}]
    row = only(folder, answers("c1", output))

    assert row["content_text"] == '[{"type":"input_text","text":"ä\\n"},{"big":1180591620717411303424}]'


def test_an_output_without_text_is_stored_whole_as_json(folder: Path) -> None:
    row = only(folder, item("tool_search_output", call_id="c1", tools=["a"]))
    assert json.loads(row["content_text"]) == {"type": "tool_search_output", "call_id": "c1", "tools": ["a"]}


def test_images_in_an_output_lose_their_payload(folder: Path) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    assert "data:image/png;base64,<stripped>" in only(folder, answers("c1", [picture]))["content_text"]


def test_reasoning_gives_its_summary(folder: Path) -> None:
    summary = [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}]
    row = only(folder, item("reasoning", summary=summary, content=[{"type": "reasoning_text", "text": "Not me."}]))

    assert (row["role"], row["part_type"], row["provider_subtype"]) == ("assistant", "reasoning", "thinking")
    assert row["content_text"] == "First.\nThen."


def test_reasoning_without_a_summary_gives_its_content(folder: Path) -> None:
    row = only(folder, item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "Hm."}]))
    assert row["content_text"] == "Hm."


def test_encrypted_content_is_never_stored(folder: Path) -> None:
    rows, reading = imported(folder, [*BEGIN, thinks(None), thinks("Hm.")])

    assert [row["content_text"] for row in rows] == ["Do it.", "Hm."]
    assert "secret" not in json.dumps(rows)
    assert reading.skipped == {"encrypted_reasoning": 1}


@pytest.mark.parametrize(
    "kind", ["additional_tools", "agent_message", "ghost_snapshot", "compaction", "context_compaction"]
)
def test_known_items_without_content_are_bookkeeping(folder: Path, kind: str) -> None:
    rows, reading = imported(folder, [*BEGIN, item(kind, content=[{"type": "input_text", "text": "x"}])])

    assert len(rows) == 1
    assert reading.skipped == {"bookkeeping": 1}


@pytest.mark.parametrize(
    "kind", ["compacted", "world_state", "inter_agent_communication", "inter_agent_communication_metadata"]
)
def test_known_lines_without_content_are_bookkeeping(folder: Path, kind: str) -> None:
    _, reading = imported(folder, [*BEGIN, line(kind, {"message": "x", "replacement_history": []})])
    assert reading.skipped == {"bookkeeping": 1}


@pytest.mark.parametrize("kind", ["task_started", "agent_message", "item_completed", "of_tomorrow", None])
def test_events_repeat_what_items_say(folder: Path, kind: Any) -> None:
    rows, reading = imported(folder, [*BEGIN, line("event_msg", {"type": kind, "message": "Yes."})])

    assert len(rows) == 1
    assert reading.skipped == {"bookkeeping": 1}


def test_a_compaction_replaces_history_without_deleting_it(folder: Path) -> None:
    replaced = line("compacted", {"message": "", "replacement_history": [says("user", "Do it.")["payload"]]})
    rows, _ = imported(folder, [*BEGIN, says("assistant", "Yes."), replaced, says("user", "On.")])

    assert [row["content_text"] for row in rows] == ["Do it.", "Yes.", "On."]


def test_unknown_types_are_counted_by_name(folder: Path) -> None:
    _, reading = imported(folder, [*BEGIN, item("hologram"), line("prophecy", {}), {"type": "aside"}, {"payload": {}}])
    assert reading.skipped == {
        "unknown_type:hologram": 1,
        "unknown_type:prophecy": 1,
        "unknown_type:aside": 1,
        "unknown_type:none": 1,
    }


@pytest.mark.hazard(60)
def test_the_name_of_an_unknown_type_is_short_and_printable(folder: Path) -> None:
    _, reading = imported(folder, [*BEGIN, item("\x1b[31mred\n" + "x" * 900)])
    assert list(reading.skipped) == ["unknown_type:??31mred?" + "x" * 31]


@pytest.mark.hazard(60)
def test_many_unknown_types_share_one_reason(folder: Path) -> None:
    _, reading = imported(folder, [*BEGIN, *(item(f"new{number}") for number in range(500))])

    assert len(reading.skipped) == 21
    assert reading.skipped.total() == 500


def test_a_message_with_an_id_is_native_and_others_are_marked(folder: Path) -> None:
    rows, _ = imported(folder, [*BEGIN, says("assistant", "Yes.", id="m1")])

    assert [row["attributes"]["codex"]["identity_source"] for row in rows] == ["gateway_fallback", "native"]
    assert [row["attributes"]["gateway"].get("identity_source") for row in rows] == ["gateway_fallback", None]
    assert len(rows[0]["message_id"]) == 16


@pytest.mark.hazard(53)
def test_repeated_messages_without_an_id_are_separate_messages(folder: Path) -> None:
    rows, _ = imported(folder, [*BEGIN, says("assistant", "Done."), says("user", "Do it."), says("assistant", "Done.")])

    assert [row["content_text"] for row in rows] == ["Do it.", "Done.", "Do it.", "Done."]
    assert len({row["message_id"] for row in rows}) == 4


def test_a_duplicate_id_is_one_message(folder: Path) -> None:
    rows, reading = imported(folder, [*BEGIN, says("assistant", "Yes.", id="m1"), says("assistant", "No.", id="m1")])

    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]
    assert reading.skipped == {"duplicate_message": 1}


def test_messages_follow_each_other_in_the_order_of_the_file(folder: Path) -> None:
    later = line("response_item", says("user", "First.", id="a")["payload"], at="2026-11-15T09:00:00Z")
    earlier = line("response_item", says("assistant", "Second.", id="b")["payload"], at="2026-11-15T08:00:00Z")
    rows, _ = imported(folder, [meta(), turn(), later, earlier])

    assert [(row["message_index"], row["previous_message_id"]) for row in rows] == [(0, []), (1, ["a"])]


_payloads = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "a_output"])
        | json_values,
        "role": st.sampled_from(["user", "assistant", "developer"]) | json_values,
        "content": st.lists(
            st.fixed_dictionaries({"type": st.sampled_from(["text", "output_text", "x"]), "text": st.text()})
            | json_values
        )
        | json_values,
        "summary": json_values,
        "output": json_values,
        "arguments": json_values,
        "call_id": json_values,
        "id": json_values,
        "name": json_values,
    },
)


@given(_payloads)
def test_both_passes_agree_on_which_items_make_messages(payload: dict[str, Any]) -> None:
    if not rollout.makes_message(payload):
        assert payload.get("type") not in ("function_call", "custom_tool_call")
        return
    role, content = rollout.convert_item(payload, Counter())

    assert has_parts(content)
    assert role == rollout.get_item_role(payload)
    assert rollout.can_carry_usage(payload) == (
        role == "assistant" and any(block["type"] in ("text", "tool_use") for block in content)
    )
