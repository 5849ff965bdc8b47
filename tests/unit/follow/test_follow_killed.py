"""The follower, killed at every crash point while a response is being written."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from hypaware.faults import list_crash_points
from hypaware.testing.fault_injection import run_in_child
from tests.support.claude_transcripts import says, user
from tests.support.followed_home import FollowedHome, output_tokens, parts

POINTS = [point.name for point in list_crash_points()]
SPOOL = ("spool.create", "spool.append", "spool.seal")
# The state is changed for the pin and for the checkpoint, of the prompt and then of the response.
KILLS = [
    *((point, times, reader) for point in POINTS if point.startswith("follow.") for times in (1, 2) for reader in "fi"),
    *((point, 1, "f") for point in POINTS if point.startswith(SPOOL)),
    *((point, times, "f") for point in POINTS if point.startswith("state.commit") for times in (1, 2, 3)),
]
LINES = [
    user("u1", "please explain"),
    says("a1", "first", "u1", 1, api="m1", output=4),
    says("a2", "second", "a1", 9, api="m1", output=30),
    says("a3", "third", "a2", 12, api="m1", output=50, stop="end_turn"),
]


@pytest.mark.hazard(96)
@pytest.mark.hazard(114)
@pytest.mark.parametrize(("point", "times", "reader"), KILLS)
def test_a_killed_follower_records_every_part_and_token_once(
    at: FollowedHome, point: str, times: int, reader: str
) -> None:
    """The response grows before the source is read again, so a different cut would count its tokens twice.

    `reader` is who reads it first: the follower, or the import.
    """
    with at.following():
        pass
    at.write(*LINES[:2])
    lived = run_in_child(at.follow_once, crash_at=f"{point}:{times}")
    assert not lived or times > 1, "a point that is never reached guards nothing"
    at.write(*LINES[2:])
    os.utime(at.transcript(), (1, 1))
    if reader == "i":
        at.imported()
    at.began = datetime.fromtimestamp(0, UTC)
    at.follow_once()
    rows = at.flushed()
    assert parts(rows) == {"u1#0": 1, "a1#0": 1, "a2#0": 1, "a3#0": 1}
    assert output_tokens(rows) == 50
