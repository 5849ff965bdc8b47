"""An exchange that has ended becomes rows in two datasets, each part once, and nothing that must not be kept."""

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

from hypaware.capture import fitting, opt_outs
from hypaware.capture.exchanges import reproject
from hypaware.capture.project import Seen, project
from hypaware.capture.recording import Body, Recording
from hypaware.capture.taking_down import OTHER_KINDS, OTHER_PATHS, TakingDown, Tally
from hypaware.clients.claude import session_context
from hypaware.config import Config, PrivacyConfig, RedactionConfig
from hypaware.home import Home
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import Row
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests import small_disk, wire
from tests.processes import eventually
from tests.upstream_stub import anthropic_events

SAMPLES = sorted(wire.SAMPLES.rglob("*.ndjson.xz"))
CLAUDE = wire.SAMPLES / "claude-2.1.325/interactive.ndjson.xz"
CLAUDE_SESSION = "8dff60ef-dbf8-402f-ba9e-53656126576b"
A_FORK = "b360ceec-c9c8-426e-a3ec-e08f72376c37"
KEY = "sk-ant-api03-" + "Ab3_" * 23 + "AA"


@contextmanager
def taking_down(home: Home, config: Config | None = None, **more: Any) -> Iterator[TakingDown]:
    """What is kept within it is durable and sealed after it."""
    with Spool(home) as spool:
        keep = TakingDown(spool, config or Config(), **more)
        try:
            yield keep
        finally:
            keep.close()


def kept(home: Home, found: list[Recording], config: Config | None = None, **more: Any) -> Tally:
    with taking_down(home, config, **more) as keep:
        for recording in found:
            keep(recording)
    return keep.tally


def raw(home: Home) -> list[Row]:
    return list(read_spooled_rows(home, "ai_gateway_exchanges"))


def messages(home: Home) -> list[Row]:
    return list(read_spooled_rows(home, "ai_gateway_messages"))


def everything(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.spool.rglob("*") if path.is_file())


def said(words: str, *, session: str = "session-1", **more: Any) -> Recording:
    """A question of one session, answered in a stream."""
    body = {
        "model": "model-1",
        "messages": [{"role": "user", "content": words}],
        "metadata": {"user_id": json.dumps({"session_id": session})},
    }
    answer = b"".join(anthropic_events()).decode()
    return wire.recording(wire.decoded("/v1/messages", body, answer, client_name="claude", **more))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_what_real_clients_sent_is_kept_raw_and_as_messages(home: Home, path: Path) -> None:
    exchanges, seen = wire.sample(path), Seen()
    tally = kept(home, wire.recordings(path))
    rows = [row for each in exchanges for row in project(each, seen).rows]

    assert [row["exchange_id"] for row in raw(home)] == [each.exchange_id for each in exchanges]
    stored = {row["part_id"]: row for row in messages(home)}
    gateway_id = next(iter(stored.values()))["gateway_id"]
    assert stored == {row["part_id"]: row for row in (coerce_row(AI_GATEWAY_MESSAGES, r, gateway_id) for r in rows)}
    assert (tally.recorded, tally.rows, tally.rejected_rows, tally.lost) == (len(exchanges), len(rows), 0, 0)
    where = segments.folder(home, "ai_gateway_messages")
    for segment in segments.sealed_segments(where):
        lines = [json.loads(line)["row"] for line in segment.path.read_bytes().splitlines()]
        waits = "-waits" in segment.name
        assert {fitting.has_no_own_id(row) for row in lines} == {waits}, "only those without an id wait for another"


@pytest.mark.hazard(83)
@pytest.mark.hazard(58)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_a_history_that_comes_again_after_a_restart_comes_under_the_same_ids(home: Home, path: Path) -> None:
    seen = Seen()
    once = {row["message_id"] for each in wire.sample(path) for row in project(each, seen).rows}
    with Spool(home) as spool:
        for recording in wire.recordings(path):
            keep = TakingDown(spool, Config())
            keep(recording)
            keep.close()

    # A fork is known by what is remembered of its origin: without that, what it repeats has a name of its own.
    assert {row["message_id"] for row in messages(home) if row["session_id"] != A_FORK} <= once
    assert {row["message_id"] for row in messages(home)} >= once


def test_a_raw_row_gives_the_messages_that_a_crash_took(home: Home) -> None:
    kept(home, wire.recordings(CLAUDE))
    gateway_id = raw(home)[0]["gateway_id"]
    again = [row for projection in reproject(raw(home)) for row in projection.rows]

    assert {coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)["part_id"] for row in again} == {
        row["part_id"] for row in messages(home)
    }


def test_a_session_that_opted_out_leaves_a_number_and_nothing_else(home: Home) -> None:
    home.root.mkdir()
    opt_outs.ignore(home, CLAUDE_SESSION)
    of_it = wire.recordings(CLAUDE)[1:]
    telemetry = wire.recording(
        wire.decoded("/api/event_logging/batch", {"events": ["what was said"]}, {}),
        request_headers=(("X-Claude-Code-Session-Id", CLAUDE_SESSION),),
    )
    tally = kept(home, [*of_it, telemetry])

    assert (tally.ignored, tally.recorded) == (len(of_it) + 1, 0)
    assert not home.spool.exists() or everything(home) == b""
    opt_outs.unignore(home, CLAUDE_SESSION)
    kept(home, of_it)
    assert len(raw(home)) == len(of_it), "what was not recorded was not noted as recorded either"
    assert messages(home)


def test_the_folder_that_a_hook_noted_decides(home: Home, tmp_path: Path) -> None:
    """A client does not send its folder along; its hook has told it before the first request."""
    secret, plain = tmp_path / "secret", tmp_path / "plain"
    for folder in (secret, plain):
        folder.mkdir()
    (secret / ".hypignore").touch()
    notes = home.root / "clients" / "claude" / "session-context.jsonl"
    notes.parent.mkdir(parents=True)
    told = [{"session_id": "hidden", "cwd": str(secret)}, {"session_id": "open", "cwd": str(plain), "git_branch": "b"}]
    notes.write_text("".join(json.dumps(each) + "\n" for each in told))

    def facts(session: str) -> Any:
        return session_context.records({"HYP_HOME": str(home.root)}).get(session, {})

    found = [said("hidden words", session="hidden"), said("open words", session="open"), said("free", session="new")]
    tally = kept(home, [replace(each, exchange_id=f"e-{n}") for n, each in enumerate(found)], facts=facts)

    assert (tally.ignored, tally.recorded) == (1, 2)
    assert b"hidden words" not in everything(home)
    # The session goes on for a while after its folder was removed.
    shutil.rmtree(secret)
    assert kept(home, [replace(found[0], exchange_id="e-9")], facts=facts).ignored == 1
    assert {(row["session_id"], row.get("cwd"), row.get("git_branch")) for row in messages(home)} == {
        ("open", str(plain), "b"),
        ("new", None, None),
    }


def test_a_new_config_holds_for_what_ends_from_then_on(home: Home) -> None:
    with taking_down(home) as keep:
        keep(said("first"))
        keep.follow(replace(Config(), privacy=PrivacyConfig(unknown_folder="ignore")))
        keep(said("second", exchange_id="exchange-2"))
        keep.follow(Config())
        keep(said("third", exchange_id="exchange-3"))
    assert (keep.tally.recorded, keep.tally.ignored) == (2, 1)
    assert b"second" not in everything(home)


@pytest.mark.hazard(59)
def test_headers_and_query_never_and_words_only_if_they_may(home: Home) -> None:
    found = said(f"my key is {KEY}")
    headers = (
        *found.request_headers,
        ("X-Api-Key", "key-in-a-header"),
        ("Cookie", "cookie-of-mine"),
        ("x-odd", "odd1"),
    )
    found = replace(found, request_headers=headers, path="/v1/messages?beta=true&token=token-in-query")
    kept(home, [found])
    stored = everything(home)

    for secret in (b"key-in-a-header", b"cookie-of-mine", b"odd1", b"token-in-query"):
        assert secret not in stored
    assert KEY.encode() in stored, "the user's own lake holds what was said, unless the config says otherwise"


@pytest.mark.hazard(59)
def test_words_are_redacted_before_anything_is_kept_also_where_a_stream_cuts_them(home: Home) -> None:
    words = [KEY[:9], KEY[9:40], KEY[40:], " is the key"]
    body = {
        "model": "model-1",
        "messages": [{"role": "user", "content": f"what is the key? not {KEY}, is it"}],
        "metadata": {"user_id": json.dumps({"session_id": "session-1"})},
    }
    answer = b"".join(anthropic_events(words)).decode()
    first = wire.recording(wire.decoded("/v1/messages", body, answer))
    answered = {"role": "assistant", "content": "".join(words)}
    shown = [*body["messages"], answered, {"role": "user", "content": "thanks"}]
    second = wire.recording(
        wire.decoded("/v1/messages", {**body, "messages": shown}, answer, exchange_id="exchange-2", **wire.later(1))
    )
    tally = kept(home, [first, second], replace(Config(), redaction=RedactionConfig(kept=True)))

    stored = everything(home).replace(b"\\", b"")
    assert KEY.encode() not in stored
    assert KEY[9:40].encode() not in stored
    assert tally.redacted == {"anthropic-key": sum(tally.redacted.values())}
    texts = [row["content_text"] for row in messages(home)]
    assert len(texts) == 4, "the answer of the first call is the history of the second"
    assert [text.count("[anthropic-key:") for text in texts] == [1, 1, 0, 1]
    again = [row["message_id"] for projection in reproject(raw(home)) for row in projection.rows]
    assert again == [row["message_id"] for row in messages(home)]


@pytest.mark.hazard(55)
def test_what_nobody_can_read_is_kept_raw_and_counted_by_its_path(home: Home) -> None:
    found = [wire.decoded(f"/v2/thing-{number}", {}, {}, exchange_id=f"e-{number}") for number in range(60)]
    found.append(replace(found[0], exchange_id="once-more"))
    tally = kept(home, [wire.recording(each) for each in found])

    assert len(raw(home)) == tally.recorded == 61
    assert tally.unknown["/v2/thing-0"] == 2
    assert sum(tally.unknown.values()) == 61
    assert tally.unknown[OTHER_PATHS] == 10, "a stranger's paths do not fill the memory"
    assert messages(home) == []


@pytest.mark.hazard(55)
def test_items_that_make_no_row_are_counted_by_their_kind(home: Home) -> None:
    def asked(kind: str, number: int) -> Recording:
        given = [{"type": "message", "role": "user", "content": f"Look {number}."}]
        answer = {"id": f"r{number}", "status": "completed", "output": [{"type": kind, "id": f"i{number}"}]}
        return wire.recording(wire.decoded("/v1/responses", {"input": given}, answer, exchange_id=f"e-{number}"))

    kinds = [*(f"new_{number}" for number in range(60)), "new_0"]
    tally = kept(home, [asked(kind, number) for number, kind in enumerate(kinds)])

    assert tally.without_row["new_0"] == 2
    assert tally.without_row[OTHER_KINDS] == 10, "a stranger's names do not fill the memory"
    again = sum((projection.skipped for projection in reproject(raw(home))), Counter())
    assert again["unknown_type:new_0"] == 2
    assert again.total() == sum(tally.without_row.values()) == 61


def test_a_body_that_is_no_text_does_not_hold_the_others(home: Home) -> None:
    broken = replace(said("x"), request=Body(b"\xff\xfe\x00" * 100, 300), exchange_id="broken")
    tally = kept(home, [broken, said("whole")])

    assert tally.recorded == 2
    assert {row["exchange_id"]: row["decoded"] for row in raw(home)} == {"broken": False, "exchange-1": True}
    assert len(messages(home)) == 2


def test_a_message_that_does_not_fit_goes_where_refused_rows_are_kept() -> None:
    good = {"provider": "p", "session_id": "s", "client_name": "c", "message_id": "m"}
    found = fitting.messages([{**good, "message_index": 2**40}, {**good, "content_text": "\ud800"}], "gateway-1")

    assert found.refused == ["column message_index", "column content_text"]
    assert found.own == [{**good, "message_index": 2**40}], "the flush refuses it with its reason"
    assert found.without_id == []


def test_a_raw_row_whose_body_does_not_fit_is_kept_without_it() -> None:
    row = {"exchange_id": "e", "ts_start": "2026-01-01T00:00:00Z", "method": "POST", "path": "/", "error": "cut"}
    stored, whole = fitting.exchange({**row, "response_body": "\ud800", "request_body": "x"}, "gateway-1")

    assert not whole
    assert "response_body" not in stored
    assert stored["error"] == "cut; not kept: column response_body"


def test_a_full_disk_delays_and_does_not_lose(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk") as disk:
        home = Home(disk.root / "home")
        with taking_down(home) as keep:
            keep(said("before"))
            eventually(lambda: keep.tally.recorded == 1)
            disk.fill()
            keep(said("during " + "x" * 100_000, exchange_id="exchange-2"))
            disk.make_room()
            keep(said("after", exchange_id="exchange-3"))
        assert (keep.tally.recorded, keep.tally.lost) == (3, 0)
        assert sorted(row["exchange_id"] for row in raw(home)) == ["exchange-1", "exchange-2", "exchange-3"]
        ids = [row["part_id"] for row in messages(home)]
        assert len(ids) == len(set(ids)) == 6
