"""Markdown tables: every cell shows its text literally."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hypaware.query import formats


def lines(**columns: Any) -> list[str]:
    batch = pa.RecordBatch.from_arrays([pa.array(values) for values in columns.values()], names=list(columns))
    return b"".join(formats.render("markdown", batch.schema, [batch])).decode().splitlines()


def test_markdown_is_a_table_with_right_aligned_numbers() -> None:
    assert lines(name=["a", None], n=[1, None]) == [
        "| name | n |",
        "| --- | ---: |",
        "| a | 1 |",
        "| *null* | *null* |",
    ]


def test_pipes_and_line_breaks_do_not_end_a_markdown_cell() -> None:
    assert lines(x=["a|b\nc\r\nd"])[2] == r"| a\|b<br>c<br>d |"


def test_a_backslash_cannot_undo_an_escape() -> None:
    assert lines(x=["\\|"])[2] == r"| \\\| |"


def test_markup_links_and_html_are_shown_literally() -> None:
    shown = lines(x=["**b** `c` [l](http://evil) ![i](http://evil) <script>&amp; http://evil"])[2]

    assert shown == (
        r"| \*\*b\*\* \`c\` \[l\](http:&#47;/evil) !\[i\](http:&#47;/evil) &lt;script>&amp;amp; http:&#47;/evil |"
    )


def test_a_column_name_is_escaped_too() -> None:
    assert lines(**{"a|b": [1]})[0] == r"| a\|b |"
