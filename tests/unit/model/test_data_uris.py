"""Base64 data inside text and arguments is not stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.model.sanitize import may_contain_base64, strip_json, strip_text

LOAD = "iVBORw0KGgo+/AAAA" * 40 + "=="


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"data:image/png;base64,{LOAD}", "data:image/png;base64,<stripped>"),
        (f"a data:image/png;base64,{LOAD} b", "a data:image/png;base64,<stripped> b"),
        (f'<img src="data:image/svg+xml;base64,{LOAD}">', '<img src="data:image/svg+xml;base64,<stripped>">'),
        (f"data:text/plain;charset=utf-8;base64,{LOAD}", "data:text/plain;charset=utf-8;base64,<stripped>"),
        (f"data:;base64,{LOAD}", "data:;base64,<stripped>"),
        ("data:a/b;base64,AA data:c/d;base64,BB", "data:a/b;base64,<stripped> data:c/d;base64,<stripped>"),
        ("data:image/png;base64,iVBOR%2Bw%3D%3D.", "data:image/png;base64,<stripped>."),
    ],
)
def test_a_data_uri_keeps_its_media_type_and_loses_its_payload(text: str, left: str) -> None:
    assert strip_text(text) == left


@pytest.mark.parametrize(
    "text", ["", "plain", "data:text/plain,hello", "echo x | base64", ";base64,", "data:image/png;base64,<stripped>"]
)
def test_other_text_is_unchanged(text: str) -> None:
    assert strip_text(text) == text


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    "text", ["data:" * 20_000 + ";base64,", "data:" + ";a" * 200_000 + ";base64,", ";base64," * 100_000]
)
def test_stripping_takes_linear_time(text: str) -> None:
    assert len(strip_text(text)) <= len(text)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AA=="}, {"data": "<stripped>"}),
        ({"type": "image", "data": LOAD, "mimeType": "image/png"}, {"data": "<stripped>"}),
        ({"base64": LOAD, "type": "image/png"}, {"base64": "<stripped>"}),
        ({"base64": "short"}, {}),
        ({"data": LOAD}, {}),
        ({"base64": "not base64, but prose. " * 60}, {}),
        ({"base64": {"data": LOAD}}, {}),
    ],
)
def test_the_payload_of_a_base64_source_is_stripped(value: dict[str, Any], left: dict[str, Any]) -> None:
    assert strip_json([{"deep": value}]) == [{"deep": value | left}]


def test_nested_text_is_stripped_in_a_copy() -> None:
    value = {"a": [f"data:image/png;base64,{LOAD}", 7, None]}
    assert strip_json(value) == {"a": ["data:image/png;base64,<stripped>", 7, None]}
    assert value["a"][0] == f"data:image/png;base64,{LOAD}"


def test_the_quick_check_has_no_false_negatives() -> None:
    assert may_contain_base64('{"a":"data:image/png;base64,AA"}')
    assert may_contain_base64('{"type":"base64","data":"AA"}')
    assert may_contain_base64('{"mimeType":"image/png"}')
    assert not may_contain_base64('{"a":"plain"}')


@given(st.text(alphabet="data:;base64,AZ/+= \n<>", max_size=60))
def test_stripping_is_idempotent(text: str) -> None:
    assert strip_text(strip_text(text)) == strip_text(text)
