from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.gateway import decode
from hypaware.gateway.exchange import SseEvent

# Characters that look like line ends but are none, and all characters with a meaning.
TEXT = st.text(st.sampled_from("ab :\u2028\u2029\x0b\x0c\x1c\x85{}\U0001f600é\x00"), max_size=8)
END = st.sampled_from(("\n", "\r", "\r\n"))
FIELD = st.tuples(st.sampled_from(("data", "event", "id", "retry", "", "odd", "data ")), TEXT)


def parse(text: str) -> list[tuple[str, str]]:
    return [(event.type, event.data) for event in decode.parse_sse(text)]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_end_in_cr_lf_or_both(end: str) -> None:
    lines = ["event: greeting", "data: one", "data: two", "", "data: three", "", ""]

    assert parse(end.join(lines)) == [("greeting", "one\ntwo"), ("message", "three")]


def test_comments_and_unknown_fields_are_skipped() -> None:
    assert parse(": ping\n\nid: 7\nretry: 10\nodd: x\ndata: here\n\n") == [("message", "here")]


def test_only_one_space_after_the_colon_is_removed() -> None:
    assert parse("data:a\n\ndata: b\n\ndata:  c\n\n") == [("message", "a"), ("message", "b"), ("message", " c")]


def test_a_field_without_a_colon_has_an_empty_value() -> None:
    assert parse("data\n\ndata\ndata\n\n") == [("message", ""), ("message", "\n")]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse("\ufeffdata: a\n\n") == [("message", "a")]


def test_an_event_without_data_is_dropped_with_its_type() -> None:
    assert parse("event: ping\n\ndata: a\n\n") == [("message", "a")]


def test_unicode_separators_do_not_end_a_line() -> None:
    assert parse('data: "\u2028\x85\x0b"\n\n') == [("message", '"\u2028\x85\x0b"')]


@pytest.mark.hazard(56)
def test_the_last_event_counts_without_a_blank_line_or_line_end() -> None:
    assert parse("data: a\n\nevent: last\ndata: b\n") == [("message", "a"), ("last", "b")]
    assert parse("data: a\n\nevent: last\ndata: b") == [("message", "a"), ("last", "b")]


@pytest.mark.hazard(56)
@settings(max_examples=500)
@given(st.lists(st.tuples(FIELD, END, st.sampled_from(("", "\n", "\r\n"))), max_size=12), st.data())
def test_any_truncation_yields_the_complete_events_and_at_most_one_partial(
    parts: list[tuple[tuple[str, str], str, str]], data: st.DataObject
) -> None:
    text = "".join(f"{name}:{value}{end}{blank}" for (name, value), end, blank in parts)
    whole = list(decode.parse_sse(text))
    cut = data.draw(st.integers(0, len(text)))

    before = list(decode.parse_sse(text[:cut]))

    assert before[:-1] == whole[: max(0, len(before) - 1)]
    if before and before != whole[: len(before)]:
        begun, meant = before[-1], whole[len(before) - 1]
        assert meant.data.startswith(begun.data)


@given(st.lists(st.tuples(st.sampled_from(("message", "ping", "content_block_delta")), st.text(max_size=20))), END)
def test_events_written_by_the_standard_are_parsed(written: list[tuple[str, str]], end: str) -> None:
    """Line ends within data become line feeds, because the format has no others."""
    expected = [SseEvent(kind, data.replace("\r\n", "\n").replace("\r", "\n")) for kind, data in written]
    text = "".join(
        f"event: {event.type}{end}" + "".join(f"data: {line}{end}" for line in event.data.split("\n")) + end
        for event in expected
    )

    assert list(decode.parse_sse(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("event: a\n", True), ("\n\n: hello\n", True), ("\ufeffdata: x", True), ('{"data": 1}', False), ("", False)],
)
def test_an_event_stream_is_recognized_by_its_beginning(text: str, expected: bool) -> None:
    assert decode.looks_like_sse(text) is expected
