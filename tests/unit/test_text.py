from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.text import escape, escape_cell, escape_json

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))


@pytest.mark.hazard(62)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31mred", "\\x9b31mred"),
        ("over\rwritten\x08", "over\\rwritten\\x08"),
        ("abc\u202edef", "abc\\u202edef"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("Grüße, 世界 👋", "Grüße, 世界 👋"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_control_sequences_are_printed_as_escapes(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_cell_is_always_one_line() -> None:
    assert escape_cell("two\nlines\tand\r\n") == "two\\nlines\\tand\\r\\n"


@given(ANY_TEXT)
def test_escaped_text_has_no_control_characters_and_can_be_encoded(text: str) -> None:
    shown = escape_cell(text)

    shown.encode()
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in shown)


@given(ANY_TEXT)
def test_escaped_json_has_the_same_value(text: str) -> None:
    document = escape_json(json.dumps({"text": text}, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    assert json.loads(document) == {"text": text}
    assert escape(document.decode()) == document.decode()
