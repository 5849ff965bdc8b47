"""Withheld sessions for a process that asks often: found again when the index or the policy changes, not otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index.store import open_index
from hypaware.privacy import ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.withheld_sessions import WithheldSessionFinder, find_withheld_sessions
from tests.support.index_home import make_home, prompt
from tests.support.light_home import append


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with one session in a folder that a file marks as local-only, and one in another folder."""
    (tmp_path / "taxes").mkdir()
    (tmp_path / "taxes" / ".hypignore").write_text("local-only\n", encoding="utf-8")
    return make_home(tmp_path / "home", _row(1, "a", tmp_path / "taxes"), _row(2, "b", tmp_path / "shop"))


def _row(number: int, session: str, folder: Path) -> dict[str, Any]:
    return prompt(number, "words", at=f"2026-11-15T08:0{number}:00Z", session_id=session, cwd=str(folder))


def _ids(home: Home, finder: WithheldSessionFinder) -> frozenset[str]:
    with open_index(home) as index:
        return finder.find(index.connection).ids


def test_the_finder_finds_what_one_look_finds(home: Home, clock: Clock) -> None:
    with open_index(home) as index:
        for include_local_only in (False, True):
            finder = WithheldSessionFinder(home, include_local_only=include_local_only, clock=clock)
            found = find_withheld_sessions(home, index.connection, include_local_only=include_local_only)
            assert finder.find(index.connection) == found
            assert finder(index.connection) == found.numbers
            assert found.ids == (frozenset() if include_local_only else {"a"})


def test_new_sessions_are_judged_immediately(home: Home, clock: Clock, tmp_path: Path) -> None:
    finder = WithheldSessionFinder(home, clock=clock)
    assert _ids(home, finder) == {"a"}
    append(home, [_row(3, "c", tmp_path / "taxes" / "2026"), _row(4, "d", tmp_path / "shop")])
    assert _ids(home, finder) == {"a", "c"}
    # A session that goes on in a private folder is withheld as a whole.
    append(home, [_row(5, "d", tmp_path / "taxes")])
    assert _ids(home, finder) == {"a", "c", "d"}


def test_a_change_of_the_policy_counts_after_a_moment(home: Home, clock: Clock) -> None:
    finder = WithheldSessionFinder(home, clock=clock)
    assert _ids(home, finder) == {"a"}
    ignored_sessions.ignore_session(home, "b")
    clock.now += 2.5
    assert _ids(home, finder) == {"a", "b"}
    ignored_sessions.unignore_session(home, "b")
    clock.now += 2.5
    assert _ids(home, finder) == {"a"}


def test_folders_are_not_looked_at_again_for_each_request(
    home: Home, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str | None] = []
    class_of = PrivacyPolicy.class_of

    def count(policy: PrivacyPolicy, cwd: str | None, session_id: str | None) -> Any:
        looked.append(cwd)
        return class_of(policy, cwd, session_id)

    monkeypatch.setattr(PrivacyPolicy, "class_of", count)
    finder = WithheldSessionFinder(home, clock=clock)
    with open_index(home) as index:
        for _ in range(5):
            finder.find(index.connection)
    assert len(looked) == 2


def test_an_unreadable_policy_withholds_everything_until_it_is_repaired(home: Home, clock: Clock) -> None:
    finder = WithheldSessionFinder(home, clock=clock)
    assert _ids(home, finder) == {"a"}
    path = ignored_sessions.ignored_sessions_path(home)
    path.write_text("{", encoding="utf-8")
    clock.now += 2.5
    for _ in range(2):
        with pytest.raises(HypError):
            _ids(home, finder)
    path.unlink()
    assert _ids(home, finder) == {"a"}
