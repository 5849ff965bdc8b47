from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest

from hypaware.clients.client import InvalidItem, Provenance
from hypaware.clients.exchange_rows import PROJECTED_EXCHANGE
from hypaware.model.datasets import coerce_row
from hypaware.model.expand import Exchange, Message
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.history import readable

PATH = "/home/dev/.diary/monday.jsonl"
FROM = Provenance("diary", PATH, "monday")
FIRST: dict[str, Any] = {"role": "user", "content": "rain?", "created_at": "2026-11-15T08:00:00Z", "message_id": "m1"}
SECOND: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "text", "text": "all day"}, {"type": "text", "text": "sorry"}],
    "created_at": "2026-11-15T08:00:01Z",
    "message_id": "m2",
    "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_tokens": 2},
}
EXCHANGE: dict[str, Any] = {
    "provider": "sky",
    "session_id": "monday",
    "client_name": "diary",
    "messages": [FIRST, SECOND],
    "columns": {"cwd": "/home/dev"},
}


def rows(value: Any, skipped: Counter[str] | None = None) -> list[dict[str, Any]]:
    made = PROJECTED_EXCHANGE.materialize(value, FROM, Counter() if skipped is None else skipped)
    return [readable(row) for row in made]


def test_an_exchange_and_an_equal_mapping_make_the_same_rows() -> None:
    exchange = Exchange(**{**EXCHANGE, "messages": [Message(**FIRST), Message(**SECOND)]})

    made = rows(exchange)

    assert [row["part_id"] for row in made] == ["m1#0", "m2#0", "m2#1"]
    assert made == rows(EXCHANGE)
    assert made == rows({**EXCHANGE, "messages": iter([FIRST, Message(**SECOND)])})


def test_its_rows_fit_the_dataset_that_it_names() -> None:
    assert PROJECTED_EXCHANGE.dataset == AI_GATEWAY_MESSAGES.name
    for row in rows(EXCHANGE):
        stored = coerce_row(AI_GATEWAY_MESSAGES, row, "gateway-1")
        assert (stored["cwd"], stored["client_name"], stored["date"]) == ("/home/dev", "diary", "2026-11-15")


def test_imported_rows_name_their_source_by_a_hash_only() -> None:
    for row in rows(EXCHANGE):
        assert row["attributes"]["gateway"] == {
            "source": "backfill",
            "source_path_hash": hashlib.sha256(PATH.encode()).hexdigest()[:16],
            "native_id": "monday",
        }
        assert PATH not in str(row)


def test_a_path_that_is_not_utf8_can_be_hashed() -> None:
    odd = Provenance("diary", "/home/dev/\udcff.jsonl", "monday")

    (row, *_) = PROJECTED_EXCHANGE.materialize(EXCHANGE, odd, Counter())

    assert len(readable(row)["attributes"]["gateway"]["source_path_hash"]) == 16


def test_tokens_are_counted_from_a_stored_row() -> None:
    tally = PROJECTED_EXCHANGE.tally
    assert tally is not None
    made = list(PROJECTED_EXCHANGE.materialize(EXCHANGE, FROM, Counter()))
    expected = [{}, {}, {"input_tokens": 5, "output_tokens": 7, "cache_read_tokens": 2}]
    assert [tally(row) for row in made] == expected
    assert tally({"attributes": '{"usage":null}'}) == {}
    assert tally({"attributes": '{"claude":{"usage":{"input_tokens":9}}}'}) == {}
    assert tally({"attributes": '{"usage":{"input_tokens":9},"zeta":{"usage":{}}}'}) == {"input_tokens": 9}
    assert tally({}) == {}


def test_parts_that_make_no_row_are_counted() -> None:
    skipped: Counter[str] = Counter()

    assert rows({**EXCHANGE, "messages": [{"role": None, "content": "?"}]}, skipped) == []
    assert skipped == {"no_role": 1}


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        ([EXCHANGE], "expected an exchange"),
        ({}, "lacks client_name, messages, provider, session_id"),
        ({**EXCHANGE, "sessionId": "monday"}, "'sessionId'"),
        ({**EXCHANGE, "provider": None}, "an exchange's provider: None is not text"),
        ({**EXCHANGE, "session_id": ""}, "session_id"),
        ({**EXCHANGE, "client_name": 7}, "client_name"),
        ({**EXCHANGE, "messages": "rain?"}, "messages"),
        ({**EXCHANGE, "messages": FIRST}, "messages"),
        ({**EXCHANGE, "messages": None}, "messages"),
        ({**EXCHANGE, "columns": ["cwd"]}, "columns"),
        ({**EXCHANGE, "attributes": None}, "attributes"),
        ({**EXCHANGE, "links": []}, "links"),
        ({**EXCHANGE, "fallback_time": "2026-11-15T08:00:00Z"}, "fallback_time"),
        ({**EXCHANGE, "messages": ["rain?"]}, "expected a message"),
        ({**EXCHANGE, "messages": [FIRST, {"role": "user"}]}, "a message lacks content"),
        ({**EXCHANGE, "messages": [{**FIRST, "text": "rain?"}]}, "'text'"),
        ({**EXCHANGE, "messages": [{**FIRST, "columns": None}]}, "columns"),
        ({**EXCHANGE, "messages": [{**FIRST, "fresh": "no"}]}, "fresh"),
        ({**EXCHANGE, "messages": [{**FIRST, "occurrence": -1}]}, "occurrence"),
        ({**EXCHANGE, "messages": [{**FIRST, "occurrence": True}]}, "occurrence"),
    ],
)
def test_an_invalid_exchange_is_refused_with_a_reason(value: Any, said: str) -> None:
    with pytest.raises(InvalidItem) as refused:
        rows(value)

    assert said in str(refused.value)


def test_a_fallback_time_may_be_a_json_list() -> None:
    without = {**EXCHANGE, "fallback_time": ["2026-11-14T00:00:00Z", "file_mtime"]}

    (row,) = rows({**without, "messages": [{"role": "user", "content": "rain?"}]})

    assert row["message_created_at"] == "2026-11-14T00:00:00.000000Z"
    assert row["attributes"]["gateway"]["time_source"] == "file_mtime"
