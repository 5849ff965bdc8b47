"""Raw rows hold everything that passed except secrets, store a repeated history once, and restore it byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.gateway.raw_exchanges import (
    PartsMissing,
    StoredParts,
    build_raw_row,
    read_parts,
    reproject_exchanges,
    restore_body,
    restore_exchange,
)
from hypaware.model.datasets import Row, coerce_row
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES
from tests.support import exchange_samples
from tests.support.strategies import json_values

SAMPLES = sorted(exchange_samples.SAMPLES.rglob("*.ndjson.xz"))


class StoredRows:
    """Stored raw rows and the parts that are known to be stored."""

    def __init__(self) -> None:
        self.stored, self.seen = StoredParts(), ConversationCache()
        self.rows: list[Row] = []

    def store(self, exchange: DecodedExchange, *, fails: bool = False) -> None:
        raw = build_raw_row(exchange, project_exchange(exchange, self.seen), self.stored)
        if not fails:
            self.rows.append(coerce_row(AI_GATEWAY_EXCHANGES, raw.row, "gateway-1"))
            self.stored.add(raw)

    def lookup(self, name: str) -> str | None:
        return next((parts[name] for row in self.rows if name in (parts := read_parts(row))), None)


def growing_session(
    calls: int, size: int, *, at: Callable[[int], dict[str, Any]] | None = None
) -> list[DecodedExchange]:
    """A session whose requests repeat the history; each step adds a call, its result and some text."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look through all of it."}]
    found = []
    for number in range(calls):
        shown = json.loads(json.dumps(messages))
        last = shown[-1]["content"]
        if isinstance(last, list):
            last[-1]["cache_control"] = {"type": "ephemeral"}
        body = {
            "model": "model-1",
            "system": [{"type": "text", "text": "Be kind. " * 800}],
            "messages": shown,
            "tools": [{"name": f"tool-{each}", "description": f"{each} does this. " * 40} for each in range(12)],
            "metadata": {"user_id": json.dumps({"session_id": "session-1"})},
        }
        said = [
            {"type": "text", "text": f"Step {number}: I read the next file, since the last one did not hold it."},
            {"type": "tool_use", "id": f"toolu_{number}", "name": "tool-1", "input": {"path": f"/src/{number}.py"}},
        ]
        answer = {"id": f"msg_{number}", "content": said, "stop_reason": "tool_use", "usage": {"output_tokens": 9}}
        more = {"exchange_id": f"exchange-{number}", **(at(number) if at else {})}
        found.append(exchange_samples.build_exchange("/v1/messages", body, answer, **more))
        result = f"{number}: " + "".join(f"line {line} of {number}\n" for line in range(size // 16))
        messages.append({"role": "assistant", "content": said})
        messages.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}],
            }
        )
    return found


def test_every_recorded_exchange_is_restored_exactly() -> None:
    for path in SAMPLES:
        kept, exchanges = StoredRows(), exchange_samples.read_sample(path)
        for exchange in exchanges:
            kept.store(exchange)
        for exchange, row in zip(exchanges, kept.rows, strict=True):
            again = restore_exchange(row, kept.lookup)
            assert again.request_text == exchange.request_text
            assert (again.request, again.response, again.events) == (
                exchange.request,
                exchange.response,
                exchange.events,
            )
            assert again.started_at == exchange.started_at
            assert dict(again.request_headers) == dict(exchange.request_headers)


def test_storing_a_long_session_takes_little_more_space_than_its_last_request() -> None:
    kept, exchanges = StoredRows(), growing_session(200, 1200)
    for exchange in exchanges:
        kept.store(exchange)
    last = len(exchanges[-1].request_text or "")
    cost = sum(len(row["request_body"]) + len(row["body_refs"]) for row in kept.rows)

    assert last > 300_000
    assert cost <= 3 * last
    parts: dict[str, str] = {}
    for exchange, row in zip(exchanges, kept.rows, strict=True):
        parts |= read_parts(row)
        assert restore_body(row, parts.get) == exchange.request_text


def test_reprojecting_stored_exchanges_gives_the_same_rows() -> None:
    for path in SAMPLES:
        kept, live = StoredRows(), list[Row]()
        for exchange in exchange_samples.read_sample(path):
            live += project_exchange(exchange, kept.seen).rows
        kept.seen.clear()
        for exchange in exchange_samples.read_sample(path):
            kept.store(exchange)

        assert [row for projection in reproject_exchanges(kept.rows) for row in projection.rows] == live


def test_a_day_holds_every_part_that_its_rows_refer_to() -> None:
    """Retention removes whole days, and the remaining rows can still be read."""
    kept, exchanges = (
        StoredRows(),
        growing_session(12, 600, at=lambda number: exchange_samples.minutes_later(number * 240)),
    )
    for exchange in exchanges:
        kept.store(exchange)
    days = sorted({row["ts_start"][:10] for row in kept.rows})
    kept.rows = [row for row in kept.rows if row["ts_start"][:10] == days[-1]]

    assert len(days) > 1
    left = exchanges[-len(kept.rows) :]
    assert [restore_body(row, kept.lookup) for row in kept.rows] == [exchange.request_text for exchange in left]


def test_a_row_with_missing_parts_names_them() -> None:
    kept = StoredRows()
    for exchange in growing_session(3, 600):
        kept.store(exchange)
    row = kept.rows.pop()
    kept.rows.clear()

    with pytest.raises(PartsMissing, match=r"exchange-2: [0-9]+ parts of its request are missing") as gone:
        restore_body(row, kept.lookup)
    assert gone.value.missing
    (projection,) = reproject_exchanges([row])
    assert (projection.rows, projection.skipped) == ((), {"parts_missing": 1})


def test_later_rows_do_not_refer_to_parts_that_were_not_stored() -> None:
    kept = StoredRows()
    for number, exchange in enumerate(growing_session(6, 600)):
        kept.store(exchange, fails=number % 2 == 0)

    assert [restore_body(row, kept.lookup) for row in kept.rows] == [
        exchange.request_text for exchange in growing_session(6, 600)[1::2]
    ]


def test_forgotten_parts_cost_only_space() -> None:
    kept, exchanges = StoredRows(), growing_session(12, 600)
    kept.stored = StoredParts(max_sessions=1, max_parts=8)
    for number, exchange in enumerate(exchanges):
        if number == 6:
            kept.stored = StoredParts()
        kept.store(exchange)

    for number, row in enumerate(kept.rows):
        assert restore_body(row, kept.lookup) == exchanges[number].request_text


def test_bodies_in_other_json_styles_are_split_too() -> None:
    kept = StoredRows()
    for exchange in growing_session(20, 600):
        spaced = json.dumps(exchange.request)
        kept.store(exchange_samples.build_exchange("/v1/messages", exchange.request, {}, request_text=spaced))
        assert restore_body(kept.rows[-1], kept.lookup) == spaced
    assert len(kept.rows[-1]["request_body"]) < 4000


def test_redacting_a_stored_part_does_not_shift_the_others() -> None:
    kept = StoredRows()
    for exchange in growing_session(4, 600):
        kept.store(exchange)
    for row in kept.rows:
        row["request_body"] = row["request_body"].replace("line 7 of 1", "[secret]")

    whole = growing_session(4, 600)[-1].request_text or ""
    assert restore_body(kept.rows[-1], kept.lookup) == whole.replace("line 7 of 1", "[secret]")


@pytest.mark.parametrize(
    "text",
    [
        '{"messages":[{"role":"user","content":"two"}],\n"n":1}',
        '{"messages" : []}',
        '{"messages":[{"role":"user","content":"\\u00e9"}]}',
        '{"messages":[],"n":123456789012345678901234567890}',
        '{"messages":[],"messages":[]}',
        '{"messages":[{}],"input":[{"content":[{}, {"cache_control":1}]}]}',
        "not json",
        "",
    ],
)
def test_a_body_in_an_unknown_json_style_is_kept_whole(text: str) -> None:
    kept = StoredRows()
    kept.store(exchange_samples.build_exchange("/v1/messages", exchange_samples.parsed(text), {}, request_text=text))

    assert restore_body(kept.rows[0], kept.lookup) == text


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "x", "cache_control"]), json_values), max_size=5))
def test_any_body_is_restored_exactly(messages: list[Any]) -> None:
    for text in (
        json.dumps({"messages": messages, "n": 1}, separators=(",", ":"), ensure_ascii=False),
        json.dumps({"n": 1, "input": messages}),
    ):
        kept = StoredRows()
        kept.store(exchange_samples.build_exchange("/v1/messages", json.loads(text), {}, request_text=text))
        kept.store(exchange_samples.build_exchange("/v1/messages", json.loads(text), {}, request_text=text))
        assert [restore_body(row, kept.lookup) for row in kept.rows] == [text, text]


@pytest.mark.hazard(55)
def test_an_exchange_in_an_unknown_dialect_is_stored_unchanged() -> None:
    kept = StoredRows()
    kept.store(
        exchange_samples.build_exchange(
            "/api/hello",
            None,
            "hello",
            method="GET",
            query="key=<redacted>",
            status=404,
            error="client_abort",
            metadata={"dev_run_id": "run-1"},
        )
    )
    (row,) = kept.rows

    assert (row["decoded"], row["path"], row["status_code"]) == (False, "/api/hello?key=<redacted>", 404)
    assert (row["response_body"], row["error"], row["metadata"]) == ("hello", "client_abort", '{"dev_run_id":"run-1"}')
    assert "session_id" not in row


def test_a_raw_row_holds_the_kind_of_the_call() -> None:
    kept = StoredRows()
    for exchange in exchange_samples.read_sample(exchange_samples.SAMPLES / "claude-2.1.325/interactive.ndjson.xz"):
        kept.store(exchange)
    kinds = [json.loads(row.get("metadata", "{}")).get("kind") for row in kept.rows]

    assert kinds == [None, "title", "turn", "turn", "turn", "turn", "turn"]
    assert {row["session_id"] for row in kept.rows[1:]} == {"8dff60ef-dbf8-402f-ba9e-53656126576b"}
    assert [row["is_sse"] for row in kept.rows] == [False] + [True] * 6
    assert AI_GATEWAY_EXCHANGES.source_of(kept.rows[1]) == "claude"


def test_raw_exchanges_are_retained_for_two_weeks_by_their_start_time() -> None:
    assert (AI_GATEWAY_EXCHANGES.retention_days, AI_GATEWAY_EXCHANGES.time_column) == (14, "ts_start")
    assert AI_GATEWAY_EXCHANGES.key_column == "exchange_id"
