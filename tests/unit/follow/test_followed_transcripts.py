"""Transcripts are recorded as they grow: every part once, with the usage of an import, whoever else reads them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hypaware.config import ClientConfig, Config
from hypaware.follow import followed_client, source_recorder
from hypaware.home.locks import locked
from hypaware.lake import tombstones
from hypaware.lake.tombstones import Tombstone
from hypaware.privacy import ignored_sessions
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support import codex_rollouts
from tests.support.claude_transcripts import SESSION, answers, calls, says, user
from tests.support.followed_home import FollowedHome, output_tokens, parts
from tests.support.light_home import DATASET, NO_TIMER, flush
from tests.support.live_rows import Part

PROMPT = user("u1", "please list")
CALL = says("a1", calls("t1", command="ls"), "u1", 1, api="m1", output=40, stop="tool_use")
RESULT = user("u2", answers("t1"), "a1", 2)
ANSWER = says("a2", "there you are", "u2", 3, api="m2", output=7, stop="end_turn")
WHOLE = (PROMPT, CALL, RESULT, ANSWER)
PARTS = {"u1#0": 1, "a1#0": 1, "u2#0": 1, "a2#0": 1}


def test_each_line_is_recorded_when_it_is_written_and_nothing_is_left_to_import(at: FollowedHome) -> None:
    at.home.root.mkdir()
    with at.following() as client:
        path = at.write(PROMPT)
        at.notice(client, path)
        assert at.spooled == 1, "a prompt cannot grow"
        at.write(CALL)
        at.notice(client, path)
        assert at.spooled == 1, "the response may still grow"
        at.now += followed_client.HELD_SECONDS
        client.work()
        assert at.spooled == 2
        at.write(RESULT, ANSWER)
        client.note_change(path, removed=False)
        at.settle(client)
        assert at.spooled == 4
        assert client.is_covered
        assert client.describe()["rows"] == 4
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == (PARTS, 47)
    assert at.imported() == 0


def test_followed_rows_equal_imported_rows(at: FollowedHome, tmp_path: Path) -> None:
    for line in WHOLE:
        at.write(line)
        at.follow_once()
    alone = replace(at, home=type(at.home)(tmp_path / "alone"))
    os.utime(at.transcript(), (1, 1))
    alone.imported()
    shown = [name for name in alone.flushed()[0] if not name.startswith("_hyp") and name != "gateway_id"]
    followed, imported = (
        {row["part_id"]: [row[name] for name in shown] for row in each.flushed()} for each in (at, alone)
    )
    assert followed == imported


@pytest.mark.hazard(96)
@pytest.mark.hazard(114)
@pytest.mark.parametrize("reader", ["follow", "import"])
def test_a_response_whose_lines_come_after_pauses_counts_its_tokens_once(at: FollowedHome, reader: str) -> None:
    """Its first lines are visible after a second; later lines carry what was added."""
    at.write(PROMPT, says("a1", "first", "u1", 1, api="m1", output=4))
    at.follow_once()
    assert at.spooled == 2
    at.write(says("a1b", "second", "a1", 20, api="m1", output=30))
    at.follow_once() if reader == "follow" else at.imported()
    at.write(says("a1c", calls("t1"), "a1b", 40, api="m1", output=50, stop="tool_use"))
    os.utime(at.transcript(), (1, 1))
    at.follow_once() if reader == "follow" else at.imported()
    rows = at.flushed()
    assert parts(rows) == {"u1#0": 1, "a1#0": 1, "a1b#0": 1, "a1c#0": 1}
    assert output_tokens(rows) == 50


@pytest.mark.hazard(114)
def test_codex_counts_tokens_that_follow_their_message_once(at: FollowedHome) -> None:
    at = replace(at, client="codex")
    lines = (
        codex_rollouts.meta(),
        codex_rollouts.turn(),
        codex_rollouts.says("user", "hello", id="one"),
        codex_rollouts.says("assistant", "a long preface", id="two"),
    )
    at.write(*lines, name=codex_rollouts.NAME)
    at.follow_once()
    assert at.spooled == 2, "the preface is visible although its tokens are not counted yet"
    at.write(codex_rollouts.says("assistant", "the end", id="three"), name=codex_rollouts.NAME)
    at.write(
        codex_rollouts.line(
            "event_msg",
            {
                "type": "token_count",
                "info": {
                    "total_token_usage": {"input_tokens": 10, "output_tokens": 9, "total_tokens": 19},
                    "last_token_usage": {"input_tokens": 10, "output_tokens": 9, "total_tokens": 19},
                },
            },
        ),
        name=codex_rollouts.NAME,
    )
    at.follow_once()
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == ({"one#0": 1, "two#0": 1, "three#0": 1}, 9)
    assert at.imported() == 0


@pytest.mark.hazard(114)
def test_a_session_that_is_followed_imported_and_seen_by_the_gateway_has_each_part_once(at: FollowedHome) -> None:
    live = [Part(1).live(session_id=SESSION, content_text="please list", message_created_at=PROMPT["timestamp"])]
    with Spool(at.home, NO_TIMER) as spool:
        spool.append(DATASET, live, deferrable=True)
    at.write(*WHOLE)
    with at.following() as client:
        at.settle(client)
        assert at.spooled == 5
    at.imported()
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == (PARTS, 47)


def test_history_is_left_to_the_import_and_what_was_added_since_its_checkpoint_is_followed(at: FollowedHome) -> None:
    path = at.write(PROMPT, CALL)
    os.utime(path, (1, 1))
    with at.following() as client:
        at.settle(client)
        assert (at.spooled, client.is_covered) == (0, False)
    assert at.imported() == 2
    at.write(RESULT, ANSWER)
    os.utime(path, (2, 2))
    at.follow_once()
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == (PARTS, 47)


def test_an_old_session_that_is_resumed_is_recorded_from_its_beginning(at: FollowedHome) -> None:
    path = at.write(PROMPT, CALL)
    os.utime(path, (1, 1))
    with at.following() as client:
        at.write(RESULT, ANSWER)
        client.note_change(path, removed=False)
        at.settle(client)
    assert parts(at.flushed()) == PARTS


def test_a_large_new_part_is_left_to_the_import(at: FollowedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (source_recorder, followed_client):
        monkeypatch.setattr(module, "MAX_NEW_BYTES", 1000)
    with at.following() as client:
        path = at.write(*WHOLE)
        client.note_change(path, removed=False)
        at.settle(client)
        assert (at.spooled, client.is_covered, client.describe()["left_to_import"]) == (0, False, 1)
    os.utime(path, (1, 1))
    assert at.imported() == 4


def test_a_file_that_is_truncated_replaced_renamed_or_deleted(at: FollowedHome) -> None:
    with at.following() as client:
        path = at.write(*WHOLE)
        client.note_change(path, removed=False)
        at.settle(client)
        at.write(PROMPT, mode="wb")
        client.note_change(path, removed=False)
        at.settle(client)
        replacement = at.write(PROMPT, user("u9", "another story", "u1", 9), name="other.tmp")
        replacement.replace(path)
        client.note_change(path, removed=False)
        at.settle(client)
        renamed = path.rename(path.with_name("renamed.jsonl"))
        client.note_change(path, removed=True)
        client.note_change(renamed, removed=False)
        at.settle(client)
        at.write(user("u10", "after the move", "u9", 10), name="renamed.jsonl")
        client.note_change(renamed, removed=False)
        at.settle(client)
        renamed.unlink()
        client.note_change(renamed, removed=True)
        at.settle(client)
        assert client.describe()["error"] is None
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == ({**PARTS, "u9#0": 1, "u10#0": 1}, 47)


def test_half_a_line_is_recorded_when_it_is_whole(at: FollowedHome) -> None:
    with at.following() as client:
        path = at.write(PROMPT)
        whole = b'{"type": "user", "uuid": "u2", "parentUuid": "u1", "sessionId": "%b", ' % SESSION.encode()
        at.write(whole)
        client.note_change(path, removed=False)
        at.settle(client)
        assert at.spooled == 1
        at.write(b'"timestamp": "2026-11-15T08:00:09Z", "message": {"role": "user", "content": "rest"}}\n')
        client.note_change(path, removed=False)
        at.settle(client)
    assert parts(at.flushed()) == {"u1#0": 1, "u2#0": 1}


def test_many_lines_at_once_are_recorded_in_several_appends(at: FollowedHome) -> None:
    lines = [user(f"u{n}", f"line {n}", f"u{n - 1}" if n else None, n / 10) for n in range(3000)]
    with at.following() as client:
        path = at.write(*lines)
        client.note_change(path, removed=False)
        at.settle(client)
    assert len(at.flushed()) == 3000
    assert at.imported() == 0


def test_purged_sessions_ignored_sessions_and_lines_before_history_from_are_not_recorded(at: FollowedHome) -> None:
    open_home(at.home).store.close()
    tombstones.create_tombstones(at.home, [Tombstone("session", "purged", "hyp purge")], "2026-11-15T08:00:00Z")
    ignored_sessions.ignore_session(at.home, "ignored")
    config = Config(clients={"claude": ClientConfig(enabled=True, history_from="2026-11-15T08:00:05Z")})
    at = replace(at, config=config)
    for session in ("purged", "ignored", "kept"):
        lines = [user(f"{session}-{n}", "text", None, n, sessionId=session) for n in (1, 9)]
        at.write(*lines, name=f"{session}.jsonl")
    at.follow_once()
    assert parts(at.flushed()) == {"kept-9#0": 1}


def test_an_import_that_runs_makes_the_follower_wait(at: FollowedHome) -> None:
    with at.following() as client:
        path = at.write(PROMPT)
        with locked(at.home.sources_lock):
            at.notice(client, path)
            assert (at.spooled, client.describe()["error"]) == (0, None)
        at.settle(client)
        assert at.spooled == 1


def test_a_full_disk_is_reported_and_the_lines_are_recorded_later(
    at: FollowedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with at.following() as client:
        path = at.write(*WHOLE)
        with monkeypatch.context() as full:
            full.setattr(Spool, "append_coerced", fail)
            at.notice(client, path)
            assert "No space left" in client.describe()["error"]
            assert not client.is_covered
        for _ in range(10):
            at.now += 10
            client.work()
        assert client.describe()["error"] is None
    rows = at.flushed()
    assert (parts(rows), output_tokens(rows)) == (PARTS, 47)


def test_a_transcript_that_takes_long_to_read_is_read_less_often(at: FollowedHome) -> None:
    path = at.write(PROMPT)
    with at.following() as client:
        real, reads = client._recorders[0].record, []

        class Slow:
            def record(self, *args: object) -> object:
                reads.append(at.now)
                at.now += 2
                return real(*args)  # type: ignore[arg-type]

        client._recorders[:] = [Slow()]  # type: ignore[list-item]
        for number in range(100):
            at.write(user(f"n{number}", "more", "u1", 5))
            client.note_change(path, removed=False)
            client.work()
            at.now += 0.1
        assert len(reads) <= 3
        assert client.next_at() <= reads[-1] + 2 + 8


def test_messages_held_in_a_quiet_file_are_released_by_a_survey(at: FollowedHome) -> None:
    path = at.write(PROMPT, CALL)
    with at.following() as client:
        client.work()
    assert at.spooled == 1, "the follower ended before the second was over"
    then = time.time() - 3600
    os.utime(path, (then, then))
    at.began = datetime.now(UTC) + timedelta(hours=1)
    with at.following():
        pass
    assert at.spooled == 2


def test_live_rows_of_a_followed_client_wait_half_a_minute_and_then_match_within_one_flush(at: FollowedHome) -> None:
    live = [Part(1).live(session_id=SESSION, content_text="please list", message_created_at=PROMPT["timestamp"])]
    with Spool(at.home, NO_TIMER) as spool:
        spool.append(DATASET, live, deferrable=True)
    (segment,) = segments.list_sealed_segments(segments.spool_folder(at.home, DATASET))
    later = time.time() + 31
    assert (segment.is_deferred(later), segment.is_deferred(later, 30)) == (True, False)
    at.write(*WHOLE)
    at.follow_once()
    flush(at.home, skip_deferred=True)
    assert at.spooled == 1, "the live row waits, the native rows do not"
    rows = at.flushed()
    assert (parts(rows), at.spooled) == (PARTS, 0)
