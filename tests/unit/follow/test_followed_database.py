"""Following a database that its client writes to: each part once, together with the import, after a crash too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hypaware.clients import database_source
from hypaware.testing.fault_injection import run_in_child
from tests.support.followed_home import FollowedHome, output_tokens, parts
from tests.support.opencode_database import TIME, Client, make_database

SURVEY_SECONDS = 10.0
DONE = {"role": "assistant", "modelID": "m", "time": {"created": TIME, "completed": TIME + 1}}


@pytest.fixture
def opencode(at: FollowedHome, monkeypatch: pytest.MonkeyPatch) -> FollowedHome:
    # No record becomes stale, however long the tests wait for their turn.
    monkeypatch.setattr(database_source, "_STALE_MS", 10**12)
    for name in ("XDG_DATA_HOME", "OPENCODE_DB"):
        monkeypatch.delenv(name, raising=False)
    return replace(at, client="opencode")


@pytest.fixture
def client(opencode: FollowedHome) -> Iterator[Client]:
    folder = opencode.folder / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    found = Client(make_database(folder, with_sample=False))
    found.add_session("s1")
    yield found
    found.close()


def test_a_session_is_followed_and_nothing_is_left_to_import(opencode: FollowedHome, client: Client) -> None:
    client.ask("m1", "s1", TIME, "One")
    with opencode.following() as followed:
        assert opencode.spooled == 1
        client.put_message("m2", "s1", TIME + 1, role="assistant")
        client.put_part("p2", "m2", "s1", TIME + 1, type="text", text="An")
        opencode.now += SURVEY_SECONDS
        followed.work()
        assert opencode.spooled == 1
        client.put_part("p2", "m2", "s1", TIME + 2, type="text", text="Answer")
        client.put_message("m2", "s1", TIME + 2, **DONE, tokens={"input": 3, "output": 2})
        opencode.now += SURVEY_SECONDS
        followed.work()
        assert opencode.spooled == 2

    assert opencode.imported() == 0
    rows = opencode.flushed()
    assert parts(rows) == {"m1#0": 1, "m2#0": 1}
    assert output_tokens(rows) == 2
    assert {row["content_text"] for row in rows} == {"One", "Answer"}


@pytest.mark.parametrize("crash", ["follow.pin.after-commit", "follow.checkpoint.before-commit"])
def test_a_killed_follower_records_every_part_once(opencode: FollowedHome, client: Client, crash: str) -> None:
    client.ask("m1", "s1", TIME, "One")
    # A connection must not be carried into a forked process.
    client.close()
    assert not run_in_child(opencode.follow_once, crash_at=crash)
    again = Client(client.path)
    again.ask("m2", "s1", TIME + 1, "Two")
    again.close()
    opencode.follow_once()
    opencode.follow_once()

    assert parts(opencode.flushed()) == {"m1#0": 1, "m2#0": 1}
    assert opencode.imported() == 0


def test_a_database_beyond_the_limit_is_left_to_the_import(
    opencode: FollowedHome, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ask("m1", "s1", TIME, "One")
    for module in ("hypaware.follow.followed_client", "hypaware.follow.source_recorder"):
        monkeypatch.setattr(f"{module}.MAX_NEW_BYTES", 10)
    opencode.follow_once()
    assert opencode.spooled == 0
    assert opencode.imported() == 1
    assert Path(client.path).is_file()
