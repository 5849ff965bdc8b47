"""The `table` format: alignment, width, truncation, null and wide characters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hypaware.query import formats


def lines(columns: dict[str, Any], **look: Any) -> list[str]:
    arrays = [values if isinstance(values, pa.Array) else pa.array(values) for values in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    return b"".join(formats.render("table", batch.schema, [batch], **look)).decode().splitlines()


def test_text_is_left_aligned_and_numbers_are_right_aligned() -> None:
    assert lines({"name": ["a", "long one"], "n": [1, 1000]}) == [
        "name         n",
        "────────  ────",
        "a            1",
        "long one  1000",
    ]


def test_null_and_an_empty_string_look_different() -> None:
    shown = lines({"a": ["", None], "b": [1, 2]})

    assert shown[2:] == ["      1", "NULL  2"]
    assert lines({"a": [None], "b": [1]}, width=80, color=True)[2] == "\x1b[2mNULL\x1b[0m  1"


def test_a_table_that_is_too_wide_truncates_its_widest_columns() -> None:
    shown = lines({"id": ["abc"], "text": ["x" * 100], "more": ["y" * 50]}, width=40)

    assert shown[2] == "abc  " + "x" * 16 + "…  " + "y" * 15 + "…"
    assert all(cell_len(line) <= 40 for line in shown)


def test_neither_words_nor_numbers_are_split() -> None:
    session, moment = "b4523ce0-57e2-4c33-a3cf-97f41b6e597e", datetime(2026, 11, 15, 7, tzinfo=UTC)
    text = "A sentence of several words, which has no room here."
    columns = {"session_id": [session], "tokens": [123_456_789_012], "content_text": [text]}
    shown = lines(columns, width=80)
    assert shown[2] == f"{session}  123456789012  A sentence of several…"
    assert all(cell_len(line) <= 80 for line in shown)
    shown = lines({**columns, "message_created_at": pa.array([moment], pa.timestamp("us", "UTC"))}, width=80)
    assert shown[1:] == [
        f"session_id          {session}",
        "tokens              123456789012",
        f"content_text        {text}",
        "message_created_at  2026-11-15T07:00:00.000000Z",
    ]


def test_a_number_that_is_wider_than_those_before_it_is_shown_in_full() -> None:
    small, large = (pa.RecordBatch.from_arrays([pa.array([n])], names=["n"]) for n in (1, 10**12))
    shown = b"".join(formats.render("table", small.schema, [small, large], width=80)).decode().splitlines()
    assert shown[2:] == ["1", "1000000000000"]


def test_without_a_width_nothing_is_truncated() -> None:
    assert "x" * 5000 in lines({"text": ["x" * 5000], "n": [1]})[2]


def test_wide_characters_keep_the_columns_aligned() -> None:
    shown = lines({"text": ["你好", "ab", "👍 ok"], "n": [1, 2, 3]}, width=40)

    assert [cell_len(line) for line in shown] == [8, 8, 8, 8, 8]
    assert shown[2] == "你好   1"


def test_truncation_never_splits_a_wide_character() -> None:
    assert lines({"text": ["你好世界你好世界"], "n": [1]}, width=12)[2] == "你好世界…  1".replace("世界", "世界")


def test_too_many_columns_for_the_width_become_one_block_per_row() -> None:
    shown = lines({f"column_{n}": [f"value {n}", "x" * 200] for n in range(20)}, width=40)

    assert shown[0].startswith("── row 1 ──")
    assert shown[1] == "column_0   value 0"
    assert shown[20] == "column_19  value 19"
    assert shown[22] == "column_0   " + "x" * 28 + "…"
    assert all(cell_len(line) <= 40 for line in shown)


def test_an_empty_table_shows_its_columns() -> None:
    assert lines({"a": pa.array([], pa.string())}, width=80) == ["a", "─"]


def test_later_rows_use_the_column_widths_of_the_first_page() -> None:
    first = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1])], names=["text", "n"])
    second = pa.RecordBatch.from_arrays([pa.array(["much longer"]), pa.array([2])], names=["text", "n"])

    cut = b"".join(formats.render("table", first.schema, [first, second], width=80)).decode().splitlines()
    whole = b"".join(formats.render("table", first.schema, [first, second])).decode().splitlines()
    assert cut[3] == "muc…  2"
    assert whole[3] == "much longer  2"


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(max_size=80)), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(24, 120),
)
def test_no_line_is_ever_wider_than_the_terminal(rows: list[list[str | None]], width: int) -> None:
    columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate("abc")}

    shown = lines(columns, width=width)

    assert len(shown) == (4 * len(rows) if shown[0].startswith("── row 1") else 2 + len(rows))
    assert all(cell_len(line) <= width for line in shown)
