"""The follower with real folders: new folders and files are found at once, and polling takes over where needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from watchfiles._rust_notify import RustNotify

from hypaware.follow import folder_watch, follower
from hypaware.follow.folder_watch import FolderWatch
from hypaware.follow.follower import Follower
from hypaware.state.home_opener import open_home
from tests.support import codex_rollouts
from tests.support.claude_transcripts import user
from tests.support.followed_home import FollowedHome, parts
from tests.support.processes import PATIENCE, eventually


@pytest.fixture
def running(at: FollowedHome) -> Iterator[Follower]:
    open_home(at.home).store.close()
    found = Follower(at.home, lambda: at.config, lambda _: ("claude",))
    stop = threading.Event()
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    eventually(lambda: found.status)
    yield found
    stop.set()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()


def facts(running: Follower) -> dict[str, Any]:
    return running.status["claude"]


def test_a_folder_that_does_not_exist_yet_is_followed_when_it_appears(at: FollowedHome, running: Follower) -> None:
    assert facts(running)["state"] == "folder_missing"
    at.write(user("u1", "hello"))
    eventually(lambda: at.spooled == 1)
    eventually(lambda: facts(running)["state"] == "following")
    at.write(user("u2", "again", "u1", 1))
    eventually(lambda: at.spooled == 2)
    assert facts(running)["mode"] == "notifications"


def test_new_sessions_new_folders_and_files_written_before_their_folder_is_watched(
    at: FollowedHome, running: Follower
) -> None:
    at.write(user("u0", "hello"))
    eventually(lambda: at.spooled == 1)
    for number in range(1, 6):
        # Not watched yet when the file is written.
        at.write(user(f"u{number}", "hello", sessionId=f"s{number}"), name=f"../-p{number}/deep/s{number}.jsonl")
    eventually(lambda: at.spooled == 6)
    at.write(user("u9", "more", "u3", 9, sessionId="s3"), name="../-p3/deep/s3.jsonl")
    eventually(lambda: at.spooled == 7)
    at.write(b"not a transcript\n", name="../-p3/deep/notes.txt")
    eventually(lambda: len(parts(at.flushed())) == 7)


def test_a_folder_that_is_replaced_is_watched_again(at: FollowedHome, running: Follower) -> None:
    at.write(user("u1", "hello"))
    eventually(lambda: facts(running)["state"] == "following" and at.spooled == 1)
    projects = at.transcript().parents[1]
    projects.rename(projects.with_name("old-projects"))
    at.write(user("u2", "in the new folder"), name="new.jsonl")
    eventually(lambda: at.spooled == 2)
    at.write(user("u3", "more", "u2", 3), name="new.jsonl")
    eventually(lambda: at.spooled == 3)


@pytest.mark.parametrize("why", ["network", "limit"])
def test_without_notifications_folders_are_polled_and_the_reason_is_known(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "network":
        monkeypatch.setattr(folder_watch, "file_system_type", lambda _: "nfs4")
    else:

        def limited(paths: list[str], debug: bool, polling: bool, *more: Any) -> Any:
            if not polling:
                raise OSError("OS file watch limit reached")
            return RustNotify(paths, debug, polling, *more)

        monkeypatch.setattr(folder_watch, "RustNotify", limited)
    watch = FolderWatch([tmp_path])
    try:
        assert watch.polling_reason is not None
        assert ("nfs4" if why == "network" else "limit reached") in watch.polling_reason
        (tmp_path / "one.jsonl").write_text("{}\n")
        changes: set[Path] = set()

        def has_changed() -> bool:
            changes.update(path for path, _ in watch.wait(0.5, threading.Event()))
            return tmp_path / "one.jsonl" in changes

        eventually(has_changed)
    finally:
        watch.close()


def test_a_client_that_is_no_longer_chosen_is_not_followed(at: FollowedHome) -> None:
    open_home(at.home).store.close()
    chosen: list[str] = ["claude"]
    found, stop = Follower(at.home, lambda: at.config, lambda _: chosen), threading.Event()
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: found.status)
        at.write(user("u1", "hello"))
        eventually(lambda: at.spooled == 1)
        chosen.clear()
        eventually(lambda: found.status == {})
        assert found.covered == frozenset()
    finally:
        stop.set()
        thread.join(timeout=PATIENCE)


def test_polling_a_client_that_names_no_folders_is_no_problem_to_report(at: FollowedHome) -> None:
    open_home(at.home).store.close()
    found, stop = Follower(at.home, lambda: at.config, lambda _: ["opencode"]), threading.Event()
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: found.status)
        about = found.status["opencode"]
        assert (about["state"], about["mode"], about["polling_reason"]) == ("following", "polling", None)
    finally:
        stop.set()
        thread.join(timeout=PATIENCE)


def test_live_rows_wait_for_the_import_while_one_client_has_something_left_for_it(at: FollowedHome) -> None:
    """Until then nothing tells that the history of a fork, seen by the gateway, is that of another session."""
    open_home(at.home).store.close()
    history = replace(at, client="codex").write(codex_rollouts.meta(), name=codex_rollouts.NAME)
    os.utime(history, (1, 1))
    chosen: list[str] = ["claude", "codex"]
    found, stop = Follower(at.home, lambda: at.config, lambda _: chosen), threading.Event()
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: found.covered == {"claude"} and found.status["codex"]["left_to_import"] == 1)
        assert not found.covers_all
        chosen.remove("codex")
        eventually(lambda: found.covers_all)
    finally:
        stop.set()
        thread.join(timeout=PATIENCE)
    assert not found.covers_all


def test_importing_the_follower_loads_neither_spark_nor_arrow() -> None:
    import subprocess
    import sys

    script = f"import sys, {follower.__name__}; print(*({{'pyspark', 'pyarrow'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
