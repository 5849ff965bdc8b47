"""Calling git for folders that transcripts name, without side effects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hypaware.clients import git
from hypaware.text import strip_url_credentials
from tests.support.claude_transcripts import row, user


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Raise git's time limit, so that slow machines pass."""
    monkeypatch.setattr(git, "_SECONDS", 120.0)
    monkeypatch.setattr(git._Timeouts, "count", 0)
    folder = tmp_path.resolve() / "repository"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def configure(repository: Path, *settings: str) -> None:
    subprocess.run(["git", "-C", str(repository), "config", *settings], check=True)


def test_a_folder_of_a_repository_has_its_root_and_remote(repository: Path) -> None:
    configure(repository, "remote.fork.url", "https://example.org/fork.git")
    configure(repository, "remote.origin.url", "https://me:secret@example.org/repo.git")
    (repository / "src").mkdir()
    assert git.find_repository(str(repository / "src")) == (str(repository), "https://example.org/repo.git")


def test_without_an_origin_the_first_remote_is_used(repository: Path) -> None:
    configure(repository, "remote.mine.url", "git@example.org:me/repo.git")
    configure(repository, "remote.yours.url", "git@example.org:you/repo.git")
    assert git.find_repository(str(repository)).remote == "git@example.org:me/repo.git"


def test_a_repository_without_a_remote_has_none(repository: Path) -> None:
    assert git.find_repository(str(repository)) == (str(repository), None)


@pytest.mark.parametrize("cwd", ["", "relative", "/nonexistent/folder", "/dev/null", "/\0", "/" + "x" * 5_000])
def test_a_missing_or_invalid_folder_has_no_repository(cwd: str) -> None:
    assert git.find_repository(cwd) == git.NO_REPOSITORY


def test_a_folder_without_a_repository_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Git variables of the caller's environment refer to another folder.
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert git.find_repository(str(tmp_path)) == git.NO_REPOSITORY


@pytest.mark.hazard(61)
def test_a_repository_cannot_make_git_run_anything(repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o700)
    configure(repository, "core.fsmonitor", str(script))
    configure(repository, "core.hooksPath", str(tmp_path))
    configure(repository, "remote.origin.url", f"ext::{script}")
    assert git.find_repository(str(repository)).repo_root == str(repository)
    assert not ran.exists()


@pytest.fixture
def hanging_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake git first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "git"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(git, "_SECONDS", 0.05)
    monkeypatch.setattr(git._Timeouts, "count", 0)


@pytest.mark.usefixtures("hanging_git")
def test_a_hanging_git_times_out_and_is_not_called_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).mkdir()
        assert git.find_repository(str(tmp_path / name)) == git.NO_REPOSITORY
    assert git._Timeouts.count == 3


def test_without_git_there_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.find_repository(str(tmp_path)) == git.NO_REPOSITORY


def test_git_is_called_once_per_folder(repository: Path) -> None:
    assert git.find_repository(str(repository)) is git.find_repository(str(repository))


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://example.org/repo.git", "https://example.org/repo.git"),
        ("https://me@example.org/repo.git", "https://example.org/repo.git"),
        ("https://me:secret@example.org:8443/a/b.git", "https://example.org:8443/a/b.git"),
        ("https://me:p@ss@example.org/repo.git", "https://example.org/repo.git"),
        ("HTTPS://token@example.org", "HTTPS://example.org"),
        ("ssh://git@example.org/repo.git", "ssh://example.org/repo.git"),
        ("git@example.org:me/repo.git", "git@example.org:me/repo.git"),
        ("https://example.org/@scope/repo", "https://example.org/@scope/repo"),
        ("https://example.org/x?who=a@b", "https://example.org/x?who=a@b"),
        ("/srv/git/repo.git", "/srv/git/repo.git"),
        ("", ""),
    ],
)
def test_credentials_are_removed_from_a_url(url: str, plain: str) -> None:
    assert strip_url_credentials(url) == plain


def test_rows_have_the_repository_of_their_session_folder(tmp_path: Path, repository: Path) -> None:
    configure(repository, "remote.origin.url", "https://me:secret@example.org/repo.git")
    made = row(tmp_path, user("u1", "Hello", cwd=str(repository)))
    assert (made["repo_root"], made["git_remote"]) == (str(repository), "https://example.org/repo.git")
    assert "head_sha" not in made
