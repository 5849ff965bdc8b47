"""The session context that hooks record: whole lines, bounded size, and no delay for the client."""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import git, session_hook
from hypaware.clients.claude.history import read_session_records
from hypaware.home import Home
from hypaware.home.session_context import context_path
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import folder_memory
from hypaware.privacy.policy import PrivacyPolicy
from tests.support import processes
from tests.support.processes import PATIENCE


@pytest.fixture(autouse=True)
def exists(home: Home) -> None:
    home.root.mkdir(mode=0o700)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits: these tests check what a hook writes, on machines of any speed."""
    monkeypatch.setattr(git, "_SECONDS", 120.0)
    monkeypatch.setattr(git._Timeouts, "count", 0)
    monkeypatch.setattr(session_hook, "_GIT_SECONDS", 120.0)
    monkeypatch.setattr(session_hook, "_LOCK_SECONDS", 120.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "repository"
    for command in (
        ["init", "--quiet", "--initial-branch", "main", str(folder)],
        ["-C", str(folder), "remote", "add", "origin", "https://me:secret@example.org/repo.git"],
        ["-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *command], check=True)
    return folder


def lines(home: Home) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context_path(home.root, "claude").read_text().splitlines()]


def test_a_recorded_session_context_can_be_read_back(home: Home, repository: Path) -> None:
    assert session_hook.record_context(home, "claude", {"session_id": "s", "cwd": str(repository), "prompt": "secret"})
    (line,) = lines(home)
    assert list(line) == ["session_id", "cwd", "git_branch", "git_remote", "head_sha", "repo_root", "at"]
    sha = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert line | {"at": ""} == {
        "session_id": "s",
        "cwd": str(repository),
        "git_branch": "main",
        "git_remote": "https://example.org/repo.git",
        "head_sha": sha.strip(),
        "repo_root": str(repository),
        "at": "",
    }
    assert read_session_records({"HYP_HOME": str(home.root)})["s"]["git_branch"] == "main"
    assert context_path(home.root, "claude").stat().st_mode & 0o777 == 0o600


def test_only_changes_are_written(home: Home, repository: Path) -> None:
    hook_input = {"session_id": "s", "cwd": str(repository)}
    assert [session_hook.record_context(home, "claude", hook_input) for _ in range(3)] == [True, False, False]
    subprocess.run(["git", "-C", str(repository), "switch", "-q", "-c", "other"], check=True)
    assert session_hook.record_context(home, "claude", hook_input)
    assert session_hook.record_context(home, "claude", {**hook_input, "session_id": "t"})
    assert [(line["session_id"], line["git_branch"]) for line in lines(home)] == [
        ("s", "main"),
        ("s", "other"),
        ("t", "other"),
    ]


def test_a_detached_head_and_an_empty_repository_have_no_branch(repository: Path, tmp_path: Path) -> None:
    sha, branch = git.read_head(str(repository))
    assert (len(sha or ""), branch) == (40, "main")
    subprocess.run(["git", "-C", str(repository), "checkout", "-q", "--detach"], check=True)
    assert git.read_head(str(repository)) == (sha, None)
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "empty")], check=True)
    assert git.read_head(str(tmp_path / "empty")) == git.Head() == git.read_head("relative") == git.read_head("/\0")


def test_only_the_path_of_an_ignored_folder_is_recorded(home: Home, repository: Path) -> None:
    (repository / ".hypignore").touch()
    assert session_hook.record_context(home, "claude", {"session_id": "s", "cwd": str(repository)})
    assert list(lines(home)[0]) == ["session_id", "cwd", "at"]


def test_the_policy_of_a_folder_is_remembered_without_a_running_gateway(home: Home, repository: Path) -> None:
    (repository / ".hypignore").write_text("local-only")
    assert session_hook.record_context(home, "claude", {"session_id": "s", "cwd": str(repository)})
    shutil.rmtree(repository)
    assert PrivacyPolicy(home).class_of(str(repository / "src"), None) is PrivacyClass.LOCAL_ONLY
    folder_memory.folder_memory_path(home).write_text("{")
    assert session_hook.record_context(home, "claude", {"session_id": "t", "cwd": str(home.root)}), (
        "a note is what counts more"
    )


@pytest.mark.hazard(61)
@pytest.mark.parametrize(
    "hook_input",
    [None, [], "x", {}, {"session_id": "s"}, {"cwd": "/x"}, {"session_id": 1, "cwd": "/x"},
     {"session_id": "s", "cwd": 1}, {"session_id": "x" * 300, "cwd": "/x"}, {"session_id": " ", "cwd": "/"},
     {"session_id": "s", "cwd": "/" + "x" * 5000}],
)  # fmt: skip
def test_invalid_input_writes_nothing(home: Home, hook_input: Any) -> None:
    assert not session_hook.record_context(home, "claude", hook_input)
    assert list(home.root.iterdir()) == []


@pytest.mark.hazard(61)
def test_a_session_id_never_becomes_a_path(home: Home) -> None:
    assert session_hook.record_context(home, "claude", {"session_id": "../../../x\n\x1b[2J", "cwd": "/nonexistent\n"})
    assert [path.name for path in home.root.rglob("*") if path.is_file()] == [
        "session-context.jsonl",
        "session-context.lock",
    ] or len(lines(home)) == 1
    assert len(context_path(home.root, "claude").read_bytes().splitlines()) == 1


def test_a_hook_does_not_recreate_a_removed_home(home: Home) -> None:
    home.root.rmdir()
    assert not session_hook.record_context(home, "claude", {"session_id": "s", "cwd": "/nonexistent"})
    assert not home.root.exists()


def test_concurrent_hooks_write_whole_lines_within_the_size_limit(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hook, "MAX_BYTES", 20_000)
    monkeypatch.setattr(session_hook, "_KEPT_BYTES", 10_000)
    session_hook.record_context(home, "claude", {"session_id": "first", "cwd": "/nonexistent/0"})
    near_the_end = multiprocessing.get_context("fork").Barrier(4)

    def many(seed: int) -> None:
        for turn in range(60):
            if turn == 55:
                # A writer that finishes long before the others would lose its lines to theirs.
                near_the_end.wait(PATIENCE)
            session_hook.record_context(
                home, "claude", {"session_id": f"{seed}-{turn % 50}", "cwd": f"/nonexistent/{turn}"}
            )

    assert processes.together([partial(many, seed) for seed in range(4)]) == [0] * 4
    found = lines(home)
    assert context_path(home.root, "claude").stat().st_size <= 20_000
    assert {f"{seed}-9" for seed in range(4)} <= {line["session_id"] for line in found}
    assert [path.name for path in context_path(home.root, "claude").parent.iterdir() if "tmp" in path.name] == []


def test_compacting_the_file_keeps_the_first_and_last_line_of_a_session(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_hook, "MAX_BYTES", 1_500)
    monkeypatch.setattr(session_hook, "_KEPT_BYTES", 1_200)
    for turn in range(30):
        session_hook.record_context(home, "claude", {"session_id": "long", "cwd": f"/nonexistent/{turn}"})
    assert (lines(home)[0]["cwd"], lines(home)[-1]["cwd"]) == ("/nonexistent/0", "/nonexistent/29")


def test_an_incomplete_last_line_does_not_damage_the_next(home: Home) -> None:
    session_hook.record_context(home, "claude", {"session_id": "s", "cwd": "/nonexistent/1"})
    with context_path(home.root, "claude").open("a") as file:
        file.write('{"session_id": "torn')
    session_hook.record_context(home, "claude", {"session_id": "t", "cwd": "/nonexistent/2"})
    assert set(read_session_records({"HYP_HOME": str(home.root)})) == {"s", "t"}


def test_a_hook_does_not_wait_long_for_the_lock(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hook, "_LOCK_SECONDS", 0.0)
    lock = context_path(home.root, "claude").with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not session_hook.record_context(home, "claude", {"session_id": "s", "cwd": "/nonexistent"})
    assert session_hook.record_context(home, "claude", {"session_id": "s", "cwd": "/nonexistent"})


@pytest.mark.parametrize(
    "stdin", [b"", b"{", b"\xff", b"[]", b'{"session_id":"s","cwd":"/nonexistent"}', b"[" * 100_000]
)
def test_the_hook_command_prints_nothing_and_succeeds_for_any_input(
    home: Home, stdin: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from hypaware.cli import entry

    monkeypatch.setenv("HYP_HOME", str(home.root))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert entry.run(["hook", "claude"]) == 0
    assert tuple(capfd.readouterr()) == ("", "")
    home.root.chmod(0o500)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    try:
        assert entry.run(["hook", "claude"]) == 0
        assert tuple(capfd.readouterr()) == ("", "")
    finally:
        home.root.chmod(0o700)
    assert [path.name for path in home.root.iterdir()] == (["clients"] if b"nonexistent" in stdin else [])
