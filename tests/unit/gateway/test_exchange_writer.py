"""A finished exchange becomes rows in two datasets, each part once, without anything private."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config, PrivacyConfig, RedactionConfig
from hypaware.errors import Retryable
from hypaware.gateway import exchange_writer
from hypaware.gateway.exchange import RecordedBody, RecordedExchange
from hypaware.gateway.exchange_writer import OTHER_KINDS, OTHER_PATHS, ExchangeCounts, ExchangeWriter
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, project_exchange
from hypaware.gateway.raw_exchanges import StoredParts, reproject_exchanges
from hypaware.home import Home
from hypaware.home.session_context import session_columns
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.privacy import ignored_sessions
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests.support import exchange_samples, small_disk
from tests.support.upstream_stub import anthropic_events

SAMPLES = sorted(exchange_samples.SAMPLES.rglob("*.ndjson.xz"))
CLAUDE = exchange_samples.SAMPLES / "claude-2.1.325/interactive.ndjson.xz"
CLAUDE_SESSION = "8dff60ef-dbf8-402f-ba9e-53656126576b"
A_FORK = "b360ceec-c9c8-426e-a3ec-e08f72376c37"
KEY = "sk-ant-api03-" + "Ab3_" * 23 + "AA"


@contextmanager
def open_writer(home: Home, config: Config | None = None, **more: Any) -> Iterator[ExchangeWriter]:
    """Rows written within it are durable and sealed after it."""
    with Spool(home) as spool:
        writer = ExchangeWriter(spool, config or Config(), **more)
        try:
            yield writer
        finally:
            writer.close()


def write_all(home: Home, found: list[RecordedExchange], config: Config | None = None, **more: Any) -> ExchangeCounts:
    with open_writer(home, config, **more) as writer:
        for recording in found:
            writer.write(recording)
    return writer.counts


def read_raw_rows(home: Home) -> list[Row]:
    return list(read_spooled_rows(home, "ai_gateway_exchanges"))


def read_messages(home: Home) -> list[Row]:
    return list(read_spooled_rows(home, "ai_gateway_messages"))


def read_all_bytes(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.spool.rglob("*") if path.is_file())


def question(words: str, *, session: str = "session-1", **more: Any) -> RecordedExchange:
    """A question of one session with a streamed response."""
    body = {
        "model": "model-1",
        "messages": [{"role": "user", "content": words}],
        "metadata": {"user_id": json.dumps({"session_id": session})},
    }
    answer = b"".join(anthropic_events()).decode()
    return exchange_samples.to_recording(
        exchange_samples.build_exchange("/v1/messages", body, answer, client_name="claude", **more)
    )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_traffic_of_real_clients_is_stored_raw_and_as_messages(home: Home, path: Path) -> None:
    exchanges, seen = exchange_samples.read_sample(path), ConversationCache()
    tally = write_all(home, exchange_samples.read_recordings(path))
    rows = [row for each in exchanges for row in project_exchange(each, seen).rows]

    assert [row["exchange_id"] for row in read_raw_rows(home)] == [each.exchange_id for each in exchanges]
    stored = {row["part_id"]: row for row in read_messages(home)}
    gateway_id = next(iter(stored.values()))["gateway_id"]
    assert stored == {row["part_id"]: row for row in (coerce_row(AI_GATEWAY_MESSAGES, r, gateway_id) for r in rows)}
    assert (tally.recorded, tally.rows, tally.rejected_rows, tally.lost) == (len(exchanges), len(rows), 0, 0)
    where = segments.spool_folder(home, "ai_gateway_messages")
    for segment in segments.list_sealed_segments(where):
        lines = [json.loads(line)["row"] for line in segment.path.read_bytes().splitlines()]
        waits = "-waits" in segment.name
        assert {exchange_writer.is_fallback_row(row) for row in lines} == {waits}, (
            "only messages without a native id wait"
        )


@pytest.mark.hazard(83)
@pytest.mark.hazard(58)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_a_history_repeated_after_a_restart_has_the_same_ids(home: Home, path: Path) -> None:
    seen = ConversationCache()
    once = {
        row["message_id"] for each in exchange_samples.read_sample(path) for row in project_exchange(each, seen).rows
    }
    with Spool(home) as spool:
        for recording in exchange_samples.read_recordings(path):
            writer = ExchangeWriter(spool, Config())
            writer.write(recording)
            writer.close()

    # A fork is recognized by the cached parts of its origin; without them, its repeated parts get ids of their own.
    assert {row["message_id"] for row in read_messages(home) if row["session_id"] != A_FORK} <= once
    assert {row["message_id"] for row in read_messages(home)} >= once


def test_messages_lost_in_a_crash_are_restored_from_the_raw_row(home: Home) -> None:
    write_all(home, exchange_samples.read_recordings(CLAUDE))
    gateway_id = read_raw_rows(home)[0]["gateway_id"]
    again = [row for projection in reproject_exchanges(read_raw_rows(home)) for row in projection.rows]

    assert {coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)["part_id"] for row in again} == {
        row["part_id"] for row in read_messages(home)
    }


def test_an_ignored_session_leaves_only_a_count(home: Home) -> None:
    home.root.mkdir()
    ignored_sessions.ignore_session(home, CLAUDE_SESSION)
    of_it = exchange_samples.read_recordings(CLAUDE)[1:]
    telemetry = exchange_samples.to_recording(
        exchange_samples.build_exchange("/api/event_logging/batch", {"events": ["what was said"]}, {}),
        request_headers=(("X-Claude-Code-Session-Id", CLAUDE_SESSION),),
    )
    tally = write_all(home, [*of_it, telemetry])

    assert (tally.ignored, tally.recorded) == (len(of_it) + 1, 0)
    assert not home.spool.exists() or read_all_bytes(home) == b""
    ignored_sessions.unignore_session(home, CLAUDE_SESSION)
    write_all(home, of_it)
    assert len(read_raw_rows(home)) == len(of_it), "an ignored exchange must not be noted as recorded"
    assert read_messages(home)


def test_the_folder_that_a_hook_noted_decides_the_privacy_class(home: Home, tmp_path: Path) -> None:
    """A client does not send its folder; its hook notes it before the first request."""
    secret, plain = tmp_path / "secret", tmp_path / "plain"
    for folder in (secret, plain):
        folder.mkdir()
    (secret / ".hypignore").touch()
    notes = home.root / "clients" / "claude" / "session-context.jsonl"
    notes.parent.mkdir(parents=True)
    told = [{"session_id": "hidden", "cwd": str(secret)}, {"session_id": "open", "cwd": str(plain), "git_branch": "b"}]
    notes.write_text("".join(json.dumps(each) + "\n" for each in told))

    def facts(session: str) -> Any:
        return session_columns(home.root, "claude").get(session, {})

    found = [
        question("hidden words", session="hidden"),
        question("open words", session="open"),
        question("free", session="new"),
    ]
    tally = write_all(home, [replace(each, exchange_id=f"e-{n}") for n, each in enumerate(found)], facts=facts)

    assert (tally.ignored, tally.recorded) == (1, 2)
    assert b"hidden words" not in read_all_bytes(home)
    # The session continues for a while after its folder was removed.
    shutil.rmtree(secret)
    assert write_all(home, [replace(found[0], exchange_id="e-9")], facts=facts).ignored == 1
    assert {(row["session_id"], row.get("cwd"), row.get("git_branch")) for row in read_messages(home)} == {
        ("open", str(plain), "b"),
        ("new", None, None),
    }


def test_a_changed_config_applies_to_exchanges_that_end_later(home: Home) -> None:
    with open_writer(home) as writer:
        writer.write(question("first"))
        writer.update_config(replace(Config(), privacy=PrivacyConfig(unknown_folder="ignore")))
        writer.write(question("second", exchange_id="exchange-2"))
        writer.update_config(Config())
        writer.write(question("third", exchange_id="exchange-3"))
    assert (writer.counts.recorded, writer.counts.ignored) == (2, 1)
    assert b"second" not in read_all_bytes(home)


@pytest.mark.hazard(59)
def test_headers_and_query_are_always_redacted_and_text_if_configured(home: Home) -> None:
    found = question(f"my key is {KEY}")
    headers = (
        *found.request_headers,
        ("X-Api-Key", "key-in-a-header"),
        ("Cookie", "cookie-of-mine"),
        ("x-odd", "odd1"),
    )
    found = replace(found, request_headers=headers, path="/v1/messages?beta=true&token=token-in-query")
    write_all(home, [found])
    stored = read_all_bytes(home)

    for secret in (b"key-in-a-header", b"cookie-of-mine", b"odd1", b"token-in-query"):
        assert secret not in stored
    assert KEY.encode() in stored, "the user's own lake holds the full text unless the config says otherwise"


@pytest.mark.hazard(59)
def test_text_is_redacted_before_storage_even_if_a_stream_splits_it(home: Home) -> None:
    words = [KEY[:9], KEY[9:40], KEY[40:], " is the key"]
    body = {
        "model": "model-1",
        "messages": [{"role": "user", "content": f"what is the key? not {KEY}, is it"}],
        "metadata": {"user_id": json.dumps({"session_id": "session-1"})},
    }
    answer = b"".join(anthropic_events(words)).decode()
    first = exchange_samples.to_recording(exchange_samples.build_exchange("/v1/messages", body, answer))
    answered = {"role": "assistant", "content": "".join(words)}
    shown = [*body["messages"], answered, {"role": "user", "content": "thanks"}]
    second = exchange_samples.to_recording(
        exchange_samples.build_exchange(
            "/v1/messages",
            {**body, "messages": shown},
            answer,
            exchange_id="exchange-2",
            **exchange_samples.minutes_later(1),
        )
    )
    tally = write_all(home, [first, second], replace(Config(), redaction=RedactionConfig(kept=True)))

    stored = read_all_bytes(home).replace(b"\\", b"")
    assert KEY.encode() not in stored
    assert KEY[9:40].encode() not in stored
    assert tally.redacted == {"anthropic-key": sum(tally.redacted.values())}
    texts = [row["content_text"] for row in read_messages(home)]
    assert len(texts) == 4, "the response of the first call is the history of the second"
    assert [text.count("[anthropic-key:") for text in texts] == [1, 1, 0, 1]
    again = [row["message_id"] for projection in reproject_exchanges(read_raw_rows(home)) for row in projection.rows]
    assert again == [row["message_id"] for row in read_messages(home)]


@pytest.mark.hazard(55)
def test_an_exchange_in_an_unknown_dialect_is_stored_raw_and_counted_by_its_path(home: Home) -> None:
    found = [
        exchange_samples.build_exchange(f"/v2/thing-{number}", {}, {}, exchange_id=f"e-{number}")
        for number in range(60)
    ]
    found.append(replace(found[0], exchange_id="once-more"))
    tally = write_all(home, [exchange_samples.to_recording(each) for each in found])

    assert len(read_raw_rows(home)) == tally.recorded == 61
    assert tally.unknown["/v2/thing-0"] == 2
    assert sum(tally.unknown.values()) == 61
    assert tally.unknown[OTHER_PATHS] == 10, "a client's paths must not fill the memory"
    assert read_messages(home) == []


@pytest.mark.hazard(55)
@pytest.mark.hazard(55)
def test_an_exchange_whose_conversation_cannot_be_read_is_stored_raw_and_the_next_request_has_its_parts(
    home: Home,
) -> None:
    failures = [ValueError("a defect in the code of a client")]

    def facts(_session: str) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return {}

    with open_writer(home, facts=facts) as writer:
        writer.write(question("Is it stored?", exchange_id="first"))
        writer.store()
        assert ([row["exchange_id"] for row in read_raw_rows(home)], read_messages(home)) == (["first"], [])
        assert (writer.counts.recorded, writer.counts.unknown) == (1, {"/v1/messages": 1})
        writer.write(question("Is it stored?", exchange_id="second"))
    assert [row["content_text"] for row in read_messages(home) if row["role"] == "user"] == ["Is it stored?"]
    assert len(read_raw_rows(home)) == 2


def test_items_without_a_row_are_counted_by_kind(home: Home) -> None:
    def request_with(kind: str, number: int) -> RecordedExchange:
        given = [{"type": "message", "role": "user", "content": f"Look {number}."}]
        answer = {"id": f"r{number}", "status": "completed", "output": [{"type": kind, "id": f"i{number}"}]}
        return exchange_samples.to_recording(
            exchange_samples.build_exchange("/v1/responses", {"input": given}, answer, exchange_id=f"e-{number}")
        )

    kinds = [*(f"new_{number}" for number in range(60)), "new_0"]
    tally = write_all(home, [request_with(kind, number) for number, kind in enumerate(kinds)])

    assert tally.without_row["new_0"] == 2
    assert tally.without_row[OTHER_KINDS] == 10, "a client's names must not fill the memory"
    again = sum((projection.skipped for projection in reproject_exchanges(read_raw_rows(home))), Counter())
    assert again["unknown_type:new_0"] == 2
    assert again.total() == sum(tally.without_row.values()) == 61


def test_a_binary_body_does_not_block_other_exchanges(home: Home) -> None:
    broken = replace(question("x"), request=RecordedBody(b"\xff\xfe\x00" * 100, 300), exchange_id="broken")
    tally = write_all(home, [broken, question("whole")])

    assert tally.recorded == 2
    assert {row["exchange_id"]: row["decoded"] for row in read_raw_rows(home)} == {"broken": False, "exchange-1": True}
    assert len(read_messages(home)) == 2


def test_a_message_that_does_not_fit_is_kept_with_the_rejects(caplog: pytest.LogCaptureFixture) -> None:
    good = {"provider": "p", "session_id": "s", "client_name": "c", "message_id": "m"}
    unfit: tuple[Row, ...] = ({**good, "message_index": 2**40}, {**good, "content_text": "\ud800"})
    exchange = exchange_samples.build_exchange("/v1/messages", {}, {})
    built = exchange_writer.build_rows(exchange, Projection(rows=unfit), StoredParts(), "gateway-1")

    assert built.rejected == 2
    assert "column message_index" in caplog.text
    assert "column content_text" in caplog.text
    assert built.native_rows == [{**good, "message_index": 2**40}], "the flush rejects it with the reason"
    assert built.fallback_rows == []


def test_a_raw_row_with_a_body_that_does_not_fit_is_kept_without_it() -> None:
    row = {"exchange_id": "e", "ts_start": "2026-01-01T00:00:00Z", "method": "POST", "path": "/", "error": "cut"}
    given = {**row, "response_body": "\ud800", "request_body": "x"}
    with pytest.raises(RowRejected) as caught:
        coerce_row(AI_GATEWAY_EXCHANGES, given, "gateway-1")

    stored = coerce_row(AI_GATEWAY_EXCHANGES, exchange_writer.drop_bodies(given, caught.value), "gateway-1")

    assert "response_body" not in stored
    assert stored["error"] == "cut; not kept: column response_body"


def test_a_full_disk_delays_storing_without_loss(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk") as disk:
        home = Home(disk.root / "home")
        with open_writer(home) as writer:
            writer.write(question("before"))
            writer.store()
            disk.fill()
            writer.write(question("during " + "x" * 100_000, exchange_id="exchange-2"))
            with pytest.raises(Retryable):
                writer.store()
            disk.make_room()
            writer.write(question("after", exchange_id="exchange-3"))
        assert (writer.counts.recorded, writer.counts.lost) == (3, 0)
        assert sorted(row["exchange_id"] for row in read_raw_rows(home)) == ["exchange-1", "exchange-2", "exchange-3"]
        ids = [row["part_id"] for row in read_messages(home)]
        assert len(ids) == len(set(ids)) == 6
