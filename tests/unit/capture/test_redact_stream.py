"""A secret that a stream brings in pieces is found in raw exchanges as well, wherever it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.capture import sse
from hypaware.capture.redact import redact_text
from hypaware.capture.redact_row import redact_row
from hypaware.capture.redact_stream import redact_text_or_stream
from hypaware.capture.secrets_hint import HINT
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES

# Put together here, so that no scanner takes this file for a leak.
KEY = "sk-" + "ant-api03-" + "Zq7_" * 23 + "AA"


def anthropic(piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}


def arguments(piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": piece}}


def responses(piece: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "delta": piece}


def chat(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": piece}}]}


def stream(form: Any, pieces: list[str]) -> str:
    return "".join(f"event: e\ndata: {json.dumps(form(piece))}\n\n" for piece in pieces) + "data: [DONE]\n\n"


def said(form: Any, text: str) -> str:
    """What a reader of the stream puts together."""
    found = [json.loads(event.data) for event in sse.events(text) if event.data != "[DONE]"]
    by_form: dict[Any, Callable[[Any], str]] = {
        anthropic: lambda each: each["delta"]["text"],
        arguments: lambda each: each["delta"]["partial_json"],
        responses: lambda each: each["delta"],
        chat: lambda each: each["choices"][0]["delta"]["content"],
    }
    return "".join(by_form[form](each) for each in found)


@pytest.mark.hazard(59)
@pytest.mark.parametrize("form", [anthropic, arguments, responses, chat])
@given(cuts=st.sets(st.integers(0, len(KEY)), max_size=4))
def test_a_secret_is_found_wherever_it_is_cut(form: Any, cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(KEY)]
    pieces = ["use ", *(KEY[begin:end] for begin, end in pairwise(places)), " now"]
    row = {"exchange_id": "e", "response_body": stream(form, pieces), "is_sse": True}
    assert pc.match_substring_regex(pa.array([row["response_body"]]), HINT)[0].as_py(), "Arrow would pass it over"
    redacted, counts = redact_row(AI_GATEWAY_EXCHANGES, row)
    marker, _ = redact_text(KEY)
    assert said(form, redacted["response_body"]) == f"use {marker} now"
    assert set(counts) == {"anthropic-key"}
    assert redact_row(AI_GATEWAY_EXCHANGES, redacted) == (redacted, {})


def test_a_stream_without_a_secret_stays_to_the_letter_and_a_comment_is_no_hiding_place() -> None:
    plain = stream(anthropic, ["nothing ", "to see"]).replace("\n\n", "\r\n\r\n")
    assert redact_text_or_stream(plain) == (plain, {})
    text, counts = redact_text_or_stream(f": {KEY}\n\n" + plain)
    assert (KEY in text, counts) == (False, {"anthropic-key": 1})
    assert said(anthropic, text) == "nothing to see"


def test_rules_that_are_off_do_not_look() -> None:
    text = stream(chat, [KEY[:9], KEY[9:]])
    assert redact_text_or_stream(text, ["anthropic-key"]) == (text, {})
