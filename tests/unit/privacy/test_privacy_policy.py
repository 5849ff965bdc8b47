"""The privacy policy: the nearest file, the config and the session decide, and the strictest wins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import hypignore, ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from tests.support import processes

FULL, LOCAL, IGNORE = PrivacyClass


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", IGNORE),
        ("# nothing but words\n\n", IGNORE),
        ("ignore\n", IGNORE),
        ("  local-only   # keep it here\r\n", LOCAL),
        ("\ufeffFULL", FULL),
        ("# why\nfull\n", FULL),
        ("full\nlocal-only\n", IGNORE),
        ("full local-only", IGNORE),
        ("*.py\n", IGNORE),
        ("public", IGNORE),
        ("full\0", IGNORE),
        ("#" * 70_000 + "\nfull", IGNORE),
    ],
)
def test_hypignore_holds_one_class_and_anything_else_means_ignore(content: str, expected: PrivacyClass) -> None:
    assert hypignore.parse_hypignore(content.encode()) is expected


@given(st.binary(max_size=40))
def test_no_content_of_a_hypignore_raises(content: bytes) -> None:
    assert hypignore.parse_hypignore(content) in PrivacyClass


def test_the_nearest_hypignore_wins_and_changes_apply_immediately(home: Home, tmp_path: Path) -> None:
    inner = tmp_path / "work/open/deep"
    inner.mkdir(parents=True)
    privacy = PrivacyPolicy(home)
    assert privacy.class_of(str(inner), None) is FULL
    (tmp_path / "work/.hypignore").write_text("local-only")
    (tmp_path / "work/open/.hypignore").write_text("full")
    assert [privacy.class_of(str(path), None) for path in (inner, inner.parent, tmp_path / "work")] == [
        FULL,
        FULL,
        LOCAL,
    ]
    (tmp_path / "work/open/.hypignore").write_text("ignore # now")
    verdict = privacy.decide(str(inner), None)
    assert (verdict.privacy_class, verdict.reason) == (IGNORE, str(tmp_path / "work/open/.hypignore"))
    (tmp_path / "work/open/.hypignore").unlink()
    assert privacy.class_of(f"{inner}/", None) is LOCAL


def test_a_missing_folder_follows_the_rules_of_its_parents(home: Home, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/.hypignore").touch()
    assert PrivacyPolicy(home).class_of(str(tmp_path / "work/was/here"), None) is IGNORE
    assert PrivacyPolicy(home).class_of(str(tmp_path / "gone/entirely"), None) is FULL


@pytest.mark.hazard(61)
@pytest.mark.parametrize("cwd", [None, "", "relative/path", "../up", "/a\0b", "/a\ud800b", "~"])
def test_an_unknown_folder_gets_the_configured_class(home: Home, cwd: str | None) -> None:
    assert PrivacyPolicy(home).class_of(cwd, None) is FULL
    assert PrivacyPolicy(home, unknown_folder=LOCAL).class_of(cwd, None) is LOCAL


def test_an_unreadable_or_irregular_hypignore_means_ignore(home: Home, tmp_path: Path) -> None:
    for name in ("folder", "pipe", "nowhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder/.hypignore").mkdir()
    os.mkfifo(tmp_path / "pipe/.hypignore")
    (tmp_path / "nowhere/.hypignore").symlink_to("/nonexistent")
    privacy = PrivacyPolicy(home)
    assert [privacy.class_of(str(tmp_path / name), None) for name in ("folder", "pipe", "nowhere")] == [IGNORE] * 3


def test_a_symbolic_link_does_not_bypass_a_rule(home: Home, tmp_path: Path) -> None:
    (tmp_path / "real/secret").mkdir(parents=True)
    (tmp_path / "real/.hypignore").write_text("ignore")
    (tmp_path / "way").symlink_to(tmp_path / "real/secret")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/.hypignore").write_text("local-only")
    (tmp_path / "closed/open").symlink_to(tmp_path)
    privacy = PrivacyPolicy(home)
    assert privacy.class_of(str(tmp_path / "way"), None) is IGNORE
    assert privacy.class_of(str(tmp_path / "closed/open"), None) is LOCAL
    by_config = PrivacyPolicy(home, {str(tmp_path / "way"): "local-only"})
    (tmp_path / "real/.hypignore").unlink()
    assert by_config.class_of(str(tmp_path / "real/secret/x"), None) is LOCAL


def test_the_innermost_configured_folder_counts(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    privacy = PrivacyPolicy(
        home, {"~/work": "ignore", str(tmp_path / "work/open"): "full", str(tmp_path / "odd"): "whatever"}
    )
    assert privacy.class_of(str(tmp_path / "work"), None) is IGNORE
    assert privacy.class_of(str(tmp_path / "work/open/x"), None) is FULL
    assert privacy.class_of(str(tmp_path / "workshop"), None) is FULL
    assert privacy.class_of(str(tmp_path / "odd"), None) is IGNORE
    assert privacy.decide(str(tmp_path / "work/x"), None).reason == "privacy.folders in the config: ~/work"


def test_the_strictest_source_wins(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".hypignore").write_text("full")
    privacy = PrivacyPolicy(home, {str(tmp_path): "local-only"})
    assert privacy.class_of(str(tmp_path), "s") is LOCAL
    ignored_sessions.ignore_session(home, "s")
    assert privacy.decide(str(tmp_path), "s").reason == "hyp session ignore"
    assert privacy.class_of(str(tmp_path), "s") is IGNORE
    assert privacy.class_of(None, "s") is IGNORE
    assert privacy.class_of(str(tmp_path), "t") is LOCAL
    assert privacy.is_withheld(str(tmp_path), "t")
    ignored_sessions.unignore_session(home, "s")
    assert privacy.class_of(str(tmp_path), "s") is LOCAL


def test_a_session_without_a_folder_uses_the_one_that_its_hooks_noted(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".hypignore").touch()
    privacy = PrivacyPolicy(home, find_cwd={"s": str(tmp_path)}.get)
    assert [privacy.class_of(None, each) for each in ("s", "t", None)] == [IGNORE, FULL, FULL]
    assert privacy.class_of("/elsewhere", "s") is FULL


def test_ignoring_a_session_reports_whether_anything_changed(home: Home) -> None:
    assert not ignored_sessions.unignore_session(home, "s")
    assert not home.root.exists()
    assert [
        ignored_sessions.ignore_session(home, "s"),
        ignored_sessions.ignore_session(home, "s"),
        ignored_sessions.ignore_session(home, "t"),
    ] == [True, False, True]
    assert set(ignored_sessions.read_ignored_sessions(home)) == {"s", "t"}
    assert [ignored_sessions.unignore_session(home, "s"), ignored_sessions.unignore_session(home, "s")] == [True, False]
    assert set(ignored_sessions.read_ignored_sessions(home)) == {"t"}
    assert ignored_sessions.ignored_sessions_path(home).stat().st_mode & 0o777 == 0o600


@pytest.mark.hazard(61)
@pytest.mark.parametrize("session_id", ["", "  ", "a\nb", "\x1b[2J", "x" * 300])
def test_an_invalid_session_id_is_rejected(home: Home, session_id: str) -> None:
    with pytest.raises(UsageError):
        ignored_sessions.ignore_session(home, session_id)
    assert not home.root.exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v": 2, "sessions": {}}', '{"v": 1, "sessions": {"a": 1}}'])
def test_with_an_unreadable_privacy_file_nothing_is_recorded_and_the_error_is_reported(
    home: Home, content: str
) -> None:
    ignored_sessions.ignore_session(home, "s")
    privacy = PrivacyPolicy(home)
    assert privacy.class_of("/x", "other") is FULL
    ignored_sessions.ignored_sessions_path(home).write_text(content)
    assert privacy.class_of("/x", "other") is IGNORE
    with pytest.raises(ignored_sessions.PrivacyFileUnreadable):
        ignored_sessions.ignore_session(home, "t")
    assert ignored_sessions.ignored_sessions_path(home).read_text() == content


def test_concurrent_opt_outs_are_all_kept(home: Home) -> None:
    works = [
        lambda each=each: [ignored_sessions.ignore_session(home, f"{each}-{turn}") for turn in range(10)]
        for each in range(4)
    ]
    assert processes.together(works) == [0] * 4
    assert len(ignored_sessions.read_ignored_sessions(home)) == 40


@pytest.mark.parametrize(
    ("point", "known"), [("privacy.opt-out.before-write", False), ("privacy.opt-out.after-write", True)]
)
def test_after_a_kill_the_opt_outs_are_the_old_or_the_new_ones(home: Home, point: str, known: bool) -> None:
    ignored_sessions.ignore_session(home, "s")
    code = "from hypaware.privacy import ignored_sessions\nfrom hypaware.home import Home\n"
    done = processes.run(code + "ignored_sessions.ignore_session(Home.from_environment(), 't')", home, crash_at=point)
    assert processes.was_killed(done)
    assert ("t" in json.loads(ignored_sessions.ignored_sessions_path(home).read_text())["sessions"]) is known
    ignored_sessions.ignore_session(home, "u")
    assert {"s", "u"} <= set(ignored_sessions.read_ignored_sessions(home))
