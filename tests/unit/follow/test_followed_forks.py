"""A fork begins with copies of another session's lines. They stay rows of that session, whichever is noticed first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.model.datasets import Row
from tests.support.claude_transcripts import OTHER_SESSION, SESSION, says, user
from tests.support.followed_home import FollowedHome, output_tokens, parts

FIRST = (user("u1", "please list"), says("a1", "there you are", "u1", 1, api="m1", output=40, stop="end_turn"))
COPIED = tuple(line | {"sessionId": OTHER_SESSION} for line in FIRST)
OWN = (
    user("u2", "and now?", "a1", 3600, sessionId=OTHER_SESSION),
    says("a2", "nothing else", "u2", 3601, api="m2", output=7, stop="end_turn", sessionId=OTHER_SESSION),
)
SESSIONS = {"u1#0": SESSION, "a1#0": SESSION, "u2#0": OTHER_SESSION, "a2#0": OTHER_SESSION}
# The names sort the fork first.
ORIGINAL, FORK = "original.jsonl", "fork.jsonl"


def sessions(rows: Iterable[Row]) -> dict[str, str]:
    return {row["part_id"]: row["session_id"] for row in rows}


def set_written(path: Path, second: int) -> None:
    written = datetime(2026, 11, 15, 8, tzinfo=UTC).timestamp() + second
    os.utime(path, (written, written))


@pytest.mark.hazard(66)
def test_a_fork_of_a_session_that_was_never_read_is_left_to_the_import_with_it(at: FollowedHome) -> None:
    set_written(at.write(*FIRST, name=ORIGINAL), 2)
    with at.following() as client:
        path = at.write(*COPIED, *OWN, name=FORK)
        client.note_change(path, removed=False)
        at.settle(client)
        assert (at.spooled, client.describe()["left_to_import"], client.is_covered) == (0, 2, False)
    set_written(path, 3602)
    at.imported()
    rows = at.flushed()
    assert (sessions(rows), output_tokens(rows)) == (SESSIONS, 47)


@pytest.mark.hazard(66)
def test_a_fork_waits_for_the_import_of_its_original_even_if_it_begins_before_its_copies(at: FollowedHome) -> None:
    """Claude Code writes some lines of the fork, which make no rows, before it copies."""
    set_written(at.write(*FIRST, name=ORIGINAL), 2)
    with at.following() as client:
        path = at.write({"type": "mode", "mode": "normal", "sessionId": OTHER_SESSION}, name=FORK)
        client.note_change(path, removed=False)
        at.settle(client)
        client.request_survey()
        at.settle(client)
        at.write(*COPIED, *OWN, name=FORK)
        client.note_change(path, removed=False)
        at.settle(client)
        assert at.spooled == 0
    set_written(path, 3602)
    at.imported()
    assert sessions(at.flushed()) == SESSIONS


@pytest.mark.hazard(66)
def test_new_sessions_do_not_wait_for_the_import_of_history_that_they_cannot_have_copied(at: FollowedHome) -> None:
    set_written(at.write(*FIRST, name=ORIGINAL), 2)
    with at.following() as client:
        path = at.write(*OWN, name=FORK)
        client.note_change(path, removed=False)
        at.settle(client)
        assert at.spooled == 2


@pytest.mark.hazard(66)
def test_an_answer_that_is_held_back_stays_with_the_session_that_a_fork_copies(at: FollowedHome) -> None:
    with at.following() as client:
        at.write(*FIRST, name=ORIGINAL)
        client.request_survey()
        at.now += 1
        client.work()
        assert at.spooled == 1, "the answer may still grow"
        path = at.write(*COPIED, *OWN, name=FORK)
        at.notice(client, path)
        at.settle(client)
    rows = at.flushed()
    assert (sessions(rows), output_tokens(rows)) == (SESSIONS, 47)
    assert at.imported() == 0


@pytest.mark.hazard(66)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_fork_written_while_no_daemon_ran_is_recorded_after_its_original(at: FollowedHome, restarted: bool) -> None:
    if restarted:
        with at.following() as client:
            at.write(*FIRST, name=ORIGINAL)
            client.request_survey()
            at.now += 1
            client.work()
        assert at.spooled == 1, "the follower ended before the second was over"
    else:
        at.write(*FIRST, name=ORIGINAL)
    at.write(*COPIED, *OWN, name=FORK)
    with at.following() as client:
        at.settle(client)
    rows = at.flushed()
    assert (sessions(rows), output_tokens(rows)) == (SESSIONS, 47)
    assert at.imported() == 0


def test_an_answer_that_an_earlier_follower_held_back_is_released_after_a_second(at: FollowedHome) -> None:
    with at.following() as client:
        at.write(*FIRST)
        client.request_survey()
        at.now += 1
        client.work()
    assert at.spooled == 1
    with at.following() as client:
        at.settle(client)
    assert parts(at.flushed()) == {"u1#0": 1, "a1#0": 1}


def test_new_sessions_are_recorded_whichever_of_them_is_noticed_first(at: FollowedHome) -> None:
    at.home.root.mkdir()
    with at.following() as client:
        paths = [
            at.write(user(f"u{second}", "Look.", None, second, sessionId=name), name=f"{name}.jsonl")
            for second, name in ((9, "a"), (5, "b"), (7, "c"))
        ]
        for path in paths:
            client.note_change(path, removed=False)
        at.settle(client)
        assert client.describe()["error"] is None
        assert at.spooled == 3
