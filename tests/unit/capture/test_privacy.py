"""The privacy policy: the nearest file, the config and the session decide, and the strictest wins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.capture import hypignore, opt_outs
from hypaware.capture.privacy import Privacy
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.errors import UsageError
from hypaware.home import Home
from tests import processes

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
    assert hypignore.parse(content.encode()) is expected


@given(st.binary(max_size=40))
def test_no_content_of_a_hypignore_raises(content: bytes) -> None:
    assert hypignore.parse(content) in PrivacyClass


def test_the_nearest_hypignore_wins_and_changes_apply_at_once(home: Home, tmp_path: Path) -> None:
    inner = tmp_path / "work/open/deep"
    inner.mkdir(parents=True)
    privacy = Privacy(home)
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
    assert Privacy(home).class_of(str(tmp_path / "work/was/here"), None) is IGNORE
    assert Privacy(home).class_of(str(tmp_path / "gone/entirely"), None) is FULL


@pytest.mark.hazard(61)
@pytest.mark.parametrize("cwd", [None, "", "relative/path", "../up", "/a\0b", "/a\ud800b", "~"])
def test_an_unknown_folder_gets_the_configured_class(home: Home, cwd: str | None) -> None:
    assert Privacy(home).class_of(cwd, None) is FULL
    assert Privacy(home, unknown_folder=LOCAL).class_of(cwd, None) is LOCAL


def test_an_unreadable_or_irregular_hypignore_means_ignore(home: Home, tmp_path: Path) -> None:
    for name in ("folder", "pipe", "nowhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder/.hypignore").mkdir()
    os.mkfifo(tmp_path / "pipe/.hypignore")
    (tmp_path / "nowhere/.hypignore").symlink_to("/nonexistent")
    privacy = Privacy(home)
    assert [privacy.class_of(str(tmp_path / name), None) for name in ("folder", "pipe", "nowhere")] == [IGNORE] * 3


def test_a_symbolic_link_does_not_bypass_a_rule(home: Home, tmp_path: Path) -> None:
    (tmp_path / "real/secret").mkdir(parents=True)
    (tmp_path / "real/.hypignore").write_text("ignore")
    (tmp_path / "way").symlink_to(tmp_path / "real/secret")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/.hypignore").write_text("local-only")
    (tmp_path / "closed/open").symlink_to(tmp_path)
    privacy = Privacy(home)
    assert privacy.class_of(str(tmp_path / "way"), None) is IGNORE
    assert privacy.class_of(str(tmp_path / "closed/open"), None) is LOCAL
    by_config = Privacy(home, {str(tmp_path / "way"): "local-only"})
    (tmp_path / "real/.hypignore").unlink()
    assert by_config.class_of(str(tmp_path / "real/secret/x"), None) is LOCAL


def test_the_innermost_configured_folder_counts(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    privacy = Privacy(
        home, {"~/work": "ignore", str(tmp_path / "work/open"): "full", str(tmp_path / "odd"): "whatever"}
    )
    assert privacy.class_of(str(tmp_path / "work"), None) is IGNORE
    assert privacy.class_of(str(tmp_path / "work/open/x"), None) is FULL
    assert privacy.class_of(str(tmp_path / "workshop"), None) is FULL
    assert privacy.class_of(str(tmp_path / "odd"), None) is IGNORE
    assert privacy.decide(str(tmp_path / "work/x"), None).reason == "privacy.folders in the config: ~/work"


def test_the_strictest_source_wins(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".hypignore").write_text("full")
    privacy = Privacy(home, {str(tmp_path): "local-only"})
    assert privacy.class_of(str(tmp_path), "s") is LOCAL
    opt_outs.ignore(home, "s")
    assert privacy.decide(str(tmp_path), "s").reason == "hyp session ignore"
    assert privacy.class_of(str(tmp_path), "s") is IGNORE
    assert privacy.class_of(None, "s") is IGNORE
    assert privacy.class_of(str(tmp_path), "t") is LOCAL
    assert privacy.is_withheld(str(tmp_path), "t")
    opt_outs.unignore(home, "s")
    assert privacy.class_of(str(tmp_path), "s") is LOCAL


def test_a_session_without_a_folder_uses_the_one_that_its_hooks_noted(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".hypignore").touch()
    privacy = Privacy(home, find_cwd={"s": str(tmp_path)}.get)
    assert [privacy.class_of(None, each) for each in ("s", "t", None)] == [IGNORE, FULL, FULL]
    assert privacy.class_of("/elsewhere", "s") is FULL


def test_ignoring_a_session_reports_whether_anything_changed(home: Home) -> None:
    assert not opt_outs.unignore(home, "s")
    assert not home.root.exists()
    assert [opt_outs.ignore(home, "s"), opt_outs.ignore(home, "s"), opt_outs.ignore(home, "t")] == [True, False, True]
    assert set(opt_outs.read(home)) == {"s", "t"}
    assert [opt_outs.unignore(home, "s"), opt_outs.unignore(home, "s")] == [True, False]
    assert set(opt_outs.read(home)) == {"t"}
    assert opt_outs.path_of(home).stat().st_mode & 0o777 == 0o600


@pytest.mark.hazard(61)
@pytest.mark.parametrize("session_id", ["", "  ", "a\nb", "\x1b[2J", "x" * 300])
def test_an_invalid_session_id_is_rejected(home: Home, session_id: str) -> None:
    with pytest.raises(UsageError):
        opt_outs.ignore(home, session_id)
    assert not home.root.exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v": 2, "sessions": {}}', '{"v": 1, "sessions": {"a": 1}}'])
def test_with_an_unreadable_privacy_file_nothing_is_recorded_and_the_error_is_reported(
    home: Home, content: str
) -> None:
    opt_outs.ignore(home, "s")
    privacy = Privacy(home)
    assert privacy.class_of("/x", "other") is FULL
    opt_outs.path_of(home).write_text(content)
    assert privacy.class_of("/x", "other") is IGNORE
    with pytest.raises(opt_outs.Unreadable):
        opt_outs.ignore(home, "t")
    assert opt_outs.path_of(home).read_text() == content


def test_concurrent_opt_outs_are_all_kept(home: Home) -> None:
    works = [lambda each=each: [opt_outs.ignore(home, f"{each}-{turn}") for turn in range(10)] for each in range(4)]
    assert processes.together(works) == [0] * 4
    assert len(opt_outs.read(home)) == 40


@pytest.mark.parametrize(
    ("point", "known"), [("capture.opt-out.before-write", False), ("capture.opt-out.after-write", True)]
)
def test_after_a_kill_the_opt_outs_are_the_old_or_the_new_ones(home: Home, point: str, known: bool) -> None:
    opt_outs.ignore(home, "s")
    code = "from hypaware.capture import opt_outs\nfrom hypaware.home import Home\n"
    done = processes.run(code + "opt_outs.ignore(Home.from_environment(), 't')", home, crash_at=point)
    assert processes.was_killed(done)
    assert ("t" in json.loads(opt_outs.path_of(home).read_text())["sessions"]) is known
    opt_outs.ignore(home, "u")
    assert {"s", "u"} <= set(opt_outs.read(home))
