"""The daemon stores the titles of followed sessions, as an import does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware.privacy import ignored_sessions
from hypaware.state.titles import read_titles
from hypaware.status.session_expiry import list_expiring
from tests.support.claude_transcripts import SESSION, says, user
from tests.support.followed_home import FollowedHome
from tests.support.light_purge import holders, purge

PROMPT, ANSWER = user("u1", "hello"), says("a1", "hi", "u1", 1, api="m1", output=4, stop="end_turn")


def title(kind: str, key: str, text: str) -> dict[str, Any]:
    return {"type": kind, key: text, "sessionId": SESSION}


def test_a_title_is_stored_when_it_is_written_even_without_a_row(at: FollowedHome) -> None:
    at.home.root.mkdir()
    with at.following() as client:
        path = at.write(PROMPT, ANSWER)
        at.notice(client, path)
        at.write(title("ai-title", "aiTitle", "A greeting"))
        at.notice(client, path)
        assert read_titles(at.home) == {SESSION: "A greeting"}
        at.write(title("custom-title", "customTitle", "Mine"))
        at.notice(client, path)
        assert read_titles(at.home) == {SESSION: "Mine"}


def test_an_ignored_or_purged_session_leaves_no_title(at: FollowedHome) -> None:
    at.home.root.mkdir()
    ignored_sessions.ignore_session(at.home, SESSION)
    with at.following() as client:
        path = at.write(PROMPT, ANSWER, title("ai-title", "aiTitle", "A secret greeting"))
        at.notice(client, path)
        assert not holders(at.home, "secret greeting")
    ignored_sessions.unignore_session(at.home, SESSION)
    purge(at.home, "session", SESSION)
    with at.following() as client:
        at.write(title("ai-title", "aiTitle", "Another secret greeting"))
        at.notice(client, path)
    assert not holders(at.home, "secret greeting")


def test_a_followed_session_counts_as_recorded(at: FollowedHome) -> None:
    at.home.root.mkdir()
    with at.following() as client:
        at.notice(client, at.write(PROMPT, ANSWER))
        at.settle(client)
    (found,) = list_expiring(at.home, at.config, at.environment, datetime.now(UTC) + timedelta(days=28))
    assert (len(found.expiring), found.unrecorded) == (1, ())
