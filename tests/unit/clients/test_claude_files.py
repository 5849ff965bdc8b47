"""Finding Claude Code's transcripts, and their import order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.client import ProviderEvent, Source
from tests.support.claude_transcripts import PROVIDER, as_bytes, at, says, user
from tests.support.unprivileged import unprivileged


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    folder = tmp_path / ".claude" / "projects"
    folder.mkdir(parents=True)
    return folder


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}\n")
    return path


def found(home: Path, **environment: str) -> list[Path]:
    return [each.path for each in ClaudeHistory().find({"HOME": str(home), **environment}) if isinstance(each, Source)]


def events(home: Path, **environment: str) -> list[ProviderEvent]:
    return [
        each for each in ClaudeHistory().find({"HOME": str(home), **environment}) if isinstance(each, ProviderEvent)
    ]


def test_every_transcript_under_projects_is_found_subagents_included(tmp_path: Path, projects: Path) -> None:
    expected = [
        touch(projects / "-home-dev-a" / "agent-1.jsonl"),
        touch(projects / "-home-dev-a" / "s1.jsonl"),
        touch(projects / "-home-dev-a" / "s1" / "subagents" / "agent-2.jsonl"),
        touch(projects / "-home-dev-b" / "s2.jsonl"),
    ]
    touch(projects / "-home-dev-a" / "s1" / "subagents" / "agent-2.meta.json")
    touch(projects / "-home-dev-a" / "notes.json")
    touch(projects / "-home-dev-a" / "s1.jsonl.bak")
    prompts = touch(projects.parent / "history.jsonl")
    touch(projects.parent / "other.jsonl")
    assert found(tmp_path) == [prompts, *expected]
    assert events(tmp_path) == []


def test_claude_config_dir_sets_the_location(tmp_path: Path, projects: Path) -> None:
    touch(projects / "a" / "s1.jsonl")
    elsewhere = touch(tmp_path / "elsewhere" / "projects" / "b" / "s2.jsonl")
    assert found(tmp_path, CLAUDE_CONFIG_DIR=str(tmp_path / "elsewhere")) == [elsewhere]
    assert found(tmp_path, CLAUDE_CONFIG_DIR="") == [projects / "a" / "s1.jsonl"]


def test_a_missing_folder_is_reported_as_no_history(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    (event,) = events(tmp_path)
    assert (event.name, event.facts) == ("no_history", {"path": str(tmp_path / ".claude" / "projects")})


def test_an_empty_folder_has_no_sources(tmp_path: Path, projects: Path) -> None:
    assert list(ClaudeHistory().find({"HOME": str(tmp_path)})) == []


@pytest.mark.hazard(61)
def test_cyclic_links_are_followed_once(tmp_path: Path, projects: Path) -> None:
    session = touch(projects / "a" / "s1.jsonl")
    (projects / "a" / "up").symlink_to(projects)
    (projects / "a" / "self").symlink_to(projects / "a" / "self")
    (projects / "b").symlink_to(projects / "a")
    assert found(tmp_path) == [session]


@pytest.mark.hazard(61)
def test_a_file_is_found_once_whatever_its_names(tmp_path: Path, projects: Path) -> None:
    session = touch(projects / "a" / "s1.jsonl")
    (projects / "a" / "s2.jsonl").symlink_to(session)
    os.link(session, projects / "a" / "s3.jsonl")
    assert found(tmp_path) == [session]


def test_a_link_to_a_folder_is_followed(tmp_path: Path, projects: Path) -> None:
    touch(tmp_path / "big-disk" / "s1.jsonl")
    (projects / "a").symlink_to(tmp_path / "big-disk")
    assert found(tmp_path) == [projects / "a" / "s1.jsonl"]


def test_broken_links_and_special_files_are_reported(tmp_path: Path, projects: Path) -> None:
    session = touch(projects / "a" / "s1.jsonl")
    (projects / "a" / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (projects / "a" / "also gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(projects / "a" / "pipe.jsonl")
    assert found(tmp_path) == [session]
    reasons = {event.facts["path"]: (event.name, event.facts["reason"]) for event in events(tmp_path)}
    assert reasons == {
        str(projects / "a" / "gone.jsonl"): ("unreadable", "No such file or directory"),
        str(projects / "a" / "pipe.jsonl"): ("unreadable", "not a regular file"),
    }


def test_an_unreadable_folder_is_reported_and_the_rest_is_found(tmp_path: Path, projects: Path) -> None:
    closed = touch(projects / "a" / "s1.jsonl").parent
    session = touch(projects / "b" / "s2.jsonl")
    closed.chmod(0)
    try:
        with unprivileged():
            assert found(tmp_path) == [session]
            assert [(event.name, event.facts["path"]) for event in events(tmp_path)] == [("unreadable", str(closed))]
    finally:
        closed.chmod(0o700)


def test_a_folder_with_the_name_of_a_transcript_is_a_folder(tmp_path: Path, projects: Path) -> None:
    inside = touch(projects / "a.jsonl" / "s1.jsonl")
    assert found(tmp_path) == [inside]


def test_names_that_are_not_utf8_can_be_reported(tmp_path: Path, projects: Path) -> None:
    (projects / os.fsdecode(b"caf\xe9.jsonl")).symlink_to("/nowhere")
    (event,) = events(tmp_path)
    assert event.facts["path"].endswith("caf\ufffd.jsonl")


def test_folders_as_deep_as_the_system_allows_are_walked(tmp_path: Path, projects: Path) -> None:
    folder = projects
    for _ in range(300):
        folder = folder / "d"
    session = touch(folder / "s1.jsonl")
    assert found(tmp_path) == [session]


def test_the_first_time_is_the_earliest_in_the_first_bytes() -> None:
    head = as_bytes([{"type": "mode"}, user("u1", "a", None, 9), says("a1", "b", "u1", 3), user("u2", "c", None, 20)])
    assert PROVIDER.first_time(head) == "2026-11-15T08:00:03.000000Z"
    assert PROVIDER.first_time(head[:-90]) == "2026-11-15T08:00:03.000000Z"


@pytest.mark.parametrize(
    "head", [b"", b"\xff\xfe", b'{"timestamp": 7}', b'{"timestamp":"0000-00-00T00:00:00Z"}', b'{"timestamp":"']
)
def test_first_bytes_without_a_time_have_no_first_time(head: bytes) -> None:
    assert PROVIDER.first_time(head) is None


def test_a_quoted_time_is_ignored() -> None:
    head = as_bytes([user("u1", '{"timestamp":"2001-01-01T00:00:00Z"}', None, 5)])
    assert PROVIDER.first_time(head) == at(5).replace("000Z", "000000Z")
