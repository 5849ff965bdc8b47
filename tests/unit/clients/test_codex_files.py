"""Finding Codex's rollouts, and reporting unsupported locations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.client import Client, Provider, ProviderEvent, Source
from hypaware.clients.codex import CLIENT
from hypaware.clients.codex.history import CodexHistory
from tests.support.unprivileged import unprivileged

PROVIDER = CodexHistory()


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "user"


@pytest.fixture
def sessions(user: Path) -> Path:
    folder = user / ".codex" / "sessions" / "2026" / "11" / "15"
    folder.mkdir(parents=True)
    return folder


def look(user: Path, **variables: str) -> tuple[list[Path], dict[str, list[dict[str, Any]]]]:
    paths, events = [], dict[str, list[dict[str, Any]]]()
    for found in PROVIDER.find({"HOME": str(user), **variables}):
        if isinstance(found, Source):
            paths.append(found.path)
        else:
            events.setdefault(found.name, []).append(dict(found.facts))
    return paths, events


@pytest.fixture
def locked(sessions: Path) -> Iterator[Path]:
    folder = sessions / "locked"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o700)


def test_the_client_offers_its_history() -> None:
    assert isinstance(CLIENT, Client)
    assert CLIENT.name == PROVIDER.name == "codex"
    assert isinstance(PROVIDER, Provider)
    assert PROVIDER.datasets == ("ai_gateway_messages",)
    assert {"CODEX_HOME", "HOME"} <= set(PROVIDER.environment)


def test_rollouts_of_both_forms_are_found_in_the_order_of_their_paths(user: Path, sessions: Path) -> None:
    elsewhere = sessions.parents[2] / "2025"
    elsewhere.mkdir()
    names = [sessions / "rollout-b.jsonl", sessions / "rollout-a.jsonl", elsewhere / "rollout-z.json"]
    for path in [*names, sessions / "notes.jsonl", sessions / "rollout-c.txt", sessions / "rollout.jsonl"]:
        path.touch()

    assert look(user) == (sorted(names), {})


def test_codex_home_sets_the_location(user: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "sessions").mkdir(parents=True)
    path = tmp_path / "mine" / "sessions" / "rollout-a.jsonl"
    path.touch()

    assert look(user, CODEX_HOME=str(tmp_path / "mine")) == ([path], {})


@pytest.mark.parametrize("made", ["", ".codex", ".codex/sessions", ".codex/sessions/2026"])
def test_a_missing_or_empty_folder_is_reported(user: Path, made: str) -> None:
    (user / made).mkdir(parents=True)
    assert look(user) == ([], {"no_history": [{"path": str(user / ".codex" / "sessions")}]})


def test_a_file_in_place_of_the_folder_has_no_history(user: Path) -> None:
    (user / ".codex").mkdir(parents=True)
    (user / ".codex" / "sessions").touch()
    assert list(look(user)[1]) == ["no_history"]


@pytest.mark.hazard(61)
def test_cyclic_links_are_followed_once(user: Path, sessions: Path) -> None:
    (sessions / "rollout-a.jsonl").touch()
    (sessions / "again").symlink_to(sessions.parents[2], target_is_directory=True)
    (sessions / "self").symlink_to(sessions / "self")
    (sessions / "rollout-self.jsonl").symlink_to(sessions / "rollout-self.jsonl")

    paths, events = look(user)
    assert [path.name for path in paths] == ["rollout-a.jsonl"]
    assert [Path(fact["path"]).name for fact in events["unreadable"]] == ["rollout-self.jsonl"]


@pytest.mark.hazard(61)
def test_a_file_under_two_names_is_read_once(user: Path, sessions: Path) -> None:
    (sessions / "rollout-a.jsonl").touch()
    (sessions / "rollout-b.jsonl").symlink_to(sessions / "rollout-a.jsonl")
    (sessions / "rollout-c.jsonl").hardlink_to(sessions / "rollout-a.jsonl")

    assert [path.name for path in look(user)[0]] == ["rollout-a.jsonl"]


def test_a_link_to_sessions_elsewhere_is_followed(user: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rollout-a.jsonl").touch()
    (user / ".codex").mkdir(parents=True)
    (user / ".codex" / "sessions").symlink_to(tmp_path / "other", target_is_directory=True)

    assert look(user) == ([user / ".codex" / "sessions" / "rollout-a.jsonl"], {})


def test_an_unreadable_folder_is_reported_and_the_rest_is_found(user: Path, sessions: Path, locked: Path) -> None:
    (sessions / "rollout-a.jsonl").touch()

    with unprivileged():
        paths, events = look(user)
    assert [path.name for path in paths] == ["rollout-a.jsonl"]
    assert events == {"unreadable": [{"path": str(locked), "reason": "Permission denied"}]}


def test_a_folder_named_like_a_rollout_is_searched_and_not_read(user: Path, sessions: Path) -> None:
    (sessions / "rollout-folder.jsonl").mkdir()
    (sessions / "rollout-folder.jsonl" / "rollout-a.jsonl").touch()
    assert [path.name for path in look(user)[0]] == ["rollout-a.jsonl"]


def test_names_that_are_not_utf8_are_found_and_reported(user: Path, sessions: Path) -> None:
    strange = sessions / os.fsdecode(b"rollout-\xff.jsonl")
    strange.touch()
    (sessions / os.fsdecode(b"rollout-\xfe.jsonl")).symlink_to("nowhere")

    paths, events = look(user)
    assert paths == [strange]
    assert events["unreadable"][0]["path"].endswith("rollout-\\xfe.jsonl")


def test_history_and_log_are_only_reported(user: Path, sessions: Path) -> None:
    (sessions / "rollout-a.jsonl").touch()
    for name in ("history.jsonl", "log"):
        (user / ".codex" / name).touch()

    paths, events = look(user)
    assert [path.name for path in paths] == ["rollout-a.jsonl"]
    assert [Path(fact["path"]).name for fact in events["diagnostic_only"]] == ["history.jsonl", "log"]


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (".config/Codex", "app"),
        ("Library/Application Support/com.openai.chat", "app"),
        (".config/google-chrome/Default/IndexedDB/https_chatgpt.com_0.indexeddb.leveldb", "browser"),
    ],
)
def test_other_storage_is_reported_and_never_read(user: Path, sessions: Path, place: str, kind: str) -> None:
    (sessions / "rollout-a.jsonl").touch()
    (user / place).mkdir(parents=True)
    (user / place / "rollout-b.jsonl").touch()

    paths, events = look(user)
    assert [path.name for path in paths] == ["rollout-a.jsonl"]
    assert events == {"unsupported_location": [{"kind": kind, "path": str(user / place)}]}


def test_archived_rollouts_are_found(user: Path, sessions: Path) -> None:
    archive = user / ".codex" / "archived_sessions"
    archive.mkdir()
    for path in (sessions / "rollout-b.jsonl", archive / "rollout-a.jsonl"):
        path.touch()

    assert look(user) == ([archive / "rollout-a.jsonl", sessions / "rollout-b.jsonl"], {})
    assert PROVIDER.folders({"HOME": str(user)}) == (user / ".codex" / "sessions", archive)


def test_a_compressed_rollout_is_found_unless_the_plain_one_is_next_to_it(user: Path, sessions: Path) -> None:
    unfinished = "rollout-d.jsonl.zst.compress.1.0.tmp"
    for name in ("rollout-a.jsonl.zst", "rollout-b.jsonl.zst", "rollout-b.jsonl", "rollout-c.jsonl.gz", unfinished):
        (sessions / name).write_bytes(b"x")

    paths, events = look(user)
    assert [path.name for path in paths] == ["rollout-a.jsonl.zst", "rollout-b.jsonl"]
    assert events == {}


@pytest.mark.parametrize("kept", ["sessions/2026/rollout-a.jsonl", "archived_sessions/rollout-a.jsonl"])
@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("known", ["rollout-a.jsonl", "rollout-a.jsonl.zst"])
def test_a_rollout_that_was_moved_or_compressed_is_not_lost(tmp_path: Path, kept: str, suffix: str, known: str) -> None:
    path = tmp_path / f"{kept}{suffix}"
    before = str(tmp_path / "sessions" / "2026" / known)
    assert not PROVIDER.is_kept_elsewhere(before)

    path.parent.mkdir(parents=True)
    path.touch()
    assert PROVIDER.is_kept_elsewhere(before)


def test_find_yields_only_sources_and_events(user: Path, sessions: Path) -> None:
    (sessions / "rollout-a.jsonl").touch()
    assert all(isinstance(found, Source | ProviderEvent) for found in PROVIDER.find({"HOME": str(user)}))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"timestamp":"2026-11-15T08:00:00.5+01:00","type":"x"}\n{"timestamp": "2026-11-15T06:59:59Z"', "06:59:59.0"),
        (b'{"payload":{"timestamp":"2026-11-15T07:00:00Z","instructions":"' + b"x" * 70_000, "07:00:00.0"),
        (b'{"text":"\\"timestamp\\":\\"2001-01-01T00:00:00Z\\"","timestamp":"2026-11-15T07:00:00Z"}', "07:00:00.0"),
        (b'{"timestamp":"0000-01-01T00:00:00Z"}\n{"timestamp":"2026-11-15T07:00:00Z"}', "07:00:00.0"),
    ],
)
def test_the_first_time_is_the_earliest_in_the_first_bytes(head: bytes, expected: str) -> None:
    found = PROVIDER.first_time(head)
    assert found is not None
    assert found.startswith(f"2026-11-15T{expected}")


@pytest.mark.parametrize("head", [b"", b"{}", b"\xff\x00garbage", b'{"timestamp":"yesterday at some point"}'])
def test_first_bytes_without_a_time_have_no_first_time(head: bytes) -> None:
    assert PROVIDER.first_time(head) is None
