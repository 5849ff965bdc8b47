"""The line of shell that a client runs as its hook: what it leaves behind, and that it never disturbs the client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import git, session_hook
from hypaware.clients.session_hook import HookNotes, build_hook_command, notes_path
from hypaware.home import Home, session_context
from hypaware.privacy import folder_memory
from tests.support import processes
from tests.support.processes import eventually

EVENT = {
    "session_id": "93f8f5e9-9df6-42f9-8700-d03544b0bb72",
    "transcript_path": "/nonexistent/.claude/projects/-nonexistent/93f8f5e9.jsonl",
    "cwd": "/nonexistent/project",
    "prompt_id": "7cc0e9d9-5c93-4fc3-bf70-fc0e1ea94c6a",
    "permission_mode": "default",
    "hook_event_name": "UserPromptSubmit",
    "prompt": 'secret "session_id":"x","cwd":"/wrong","',
}
"""What Claude Code 2.1 passes to its hooks, in its order and without spaces."""
SHELLS = [each for each in ("sh", "dash", "bash", "zsh", "ksh", "busybox sh") if shutil.which(each.split()[0])]


@pytest.fixture(autouse=True)
def attached(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    notes_path(home, "claude").parent.mkdir(mode=0o700, parents=True)
    home.run.mkdir()
    monkeypatch.setattr(git, "_SECONDS", 120.0)
    monkeypatch.setattr(session_hook, "_GIT_SECONDS", 120.0)
    monkeypatch.setattr(session_hook, "_LOCK_SECONDS", 120.0)


@pytest.fixture
def notes(home: Home) -> Iterator[HookNotes]:
    """The notes that this process reads, as a daemon does."""
    found = HookNotes(home)
    found.announce()
    yield found
    found.retract()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A stand-in for `hyp`: it waits for the client's end (`release`), then writes its arguments, home and input."""
    path = tmp_path / "it's hyp"
    os.mkfifo(tmp_path / "release")
    path.write_text(
        f'#!/bin/sh\nread -r _ <{tmp_path}/release\n{{ echo "$@"; echo "$HYP_HOME"; cat; }} >{tmp_path}/out\n'
        f"mv {tmp_path}/out {tmp_path}/called\n"
    )
    path.chmod(0o700)
    return path


def encode(event: Any) -> bytes:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


def run_hook(home: Home, event: bytes, program: Path | str = "/nonexistent/hyp", shell: str = "sh") -> None:
    """Run the hook as the client does: until it has ended and closed its output."""
    command = build_hook_command("claude", str(program), str(home.root))
    done = subprocess.run([*shell.split(), "-c", command], input=event, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def read_notes(home: Home) -> list[dict[str, Any]]:
    path = notes_path(home, "claude")
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def contexts(home: Home) -> dict[str, str]:
    return {name: columns["cwd"] for name, columns in session_context.session_columns(home.root, "claude").items()}


@pytest.mark.hazard(111)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.usefixtures("notes")
def test_a_hook_notes_only_the_session_and_its_folder(home: Home, tmp_path: Path, program: Path, shell: str) -> None:
    run_hook(home, encode(EVENT), program, shell)
    assert read_notes(home) == [{"session_id": EVENT["session_id"], "cwd": "/nonexistent/project"}]
    assert b"secret" not in notes_path(home, "claude").read_bytes()
    assert notes_path(home, "claude").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "out").exists(), "no program is started while a daemon reads the notes"


@pytest.mark.hazard(111)
@pytest.mark.parametrize(
    "cwd",
    ["/a b", '/say "hi"', '/x","y', "/back\\slash\\", "/tab\t\n", "/für", "/$(touch x)`%s%n'", "/" + "x" * 3000, "/*"],
)  # fmt: skip
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.usefixtures("notes")
def test_a_hook_notes_any_folder_exactly(home: Home, shell: str, cwd: str) -> None:
    run_hook(home, encode({**EVENT, "cwd": cwd}), shell=shell)
    assert [each["cwd"] for each in read_notes(home)] == [cwd]


@pytest.mark.parametrize(
    "event",
    [b"", b"{", b"\xff\0", b"[]", b"{}", encode({"session_id": "s"}), encode({"cwd": "/x"}), b"\n" * 9000,
     encode({**EVENT, "cwd": "/" + "x" * 5000}), encode({**EVENT, "session_id": None}), b'"cwd":"' * 5000],
)  # fmt: skip
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.usefixtures("notes")
def test_a_hook_notes_nothing_for_input_that_it_does_not_understand(home: Home, shell: str, event: bytes) -> None:
    run_hook(home, event, shell=shell)
    assert read_notes(home) == []


@pytest.mark.usefixtures("notes")
def test_a_hook_leaves_a_long_input_unread(home: Home) -> None:
    run_hook(home, encode({**EVENT, "prompt": "x" * 5_000_000}))
    assert len(read_notes(home)) == 1


@pytest.mark.usefixtures("notes")
def test_a_hook_stops_at_a_size_limit(home: Home) -> None:
    notes_path(home, "claude").write_bytes(b"x" * 1_000_001)
    run_hook(home, encode(EVENT))
    assert notes_path(home, "claude").stat().st_size == 1_000_001


@pytest.mark.usefixtures("notes")
def test_concurrent_hooks_write_whole_lines(home: Home) -> None:
    events = [encode({**EVENT, "session_id": f"s{number}", "cwd": "/" + "x" * 3000}) for number in range(20)]
    assert processes.together([partial(run_hook, home, event) for event in events]) == [0] * 20
    assert {each["session_id"] for each in read_notes(home)} == {f"s{number}" for number in range(20)}


@pytest.mark.hazard(111)
@pytest.mark.parametrize("reader", [None, "", "x\n", "0\n", "{dead} {boot}\n", "{alive} another-boot\n"])
@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_daemon_the_program_does_the_work_while_the_client_continues(
    home: Home, tmp_path: Path, program: Path, shell: str, reader: str | None
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    if reader is not None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        written = reader.format(dead=ended.pid, alive=os.getpid(), boot=boot_id)
        (home.run / "hook-notes").write_text(written)
    run_hook(home, encode(EVENT), program, shell)
    assert not (tmp_path / "called").exists()
    (tmp_path / "release").write_text("\n")
    eventually((tmp_path / "called").exists)
    arguments, at, note = (tmp_path / "called").read_text().splitlines()
    assert (arguments, at) == ("hook claude", str(home.root))
    assert json.loads(note) == {"session_id": EVENT["session_id"], "cwd": EVENT["cwd"]}
    assert read_notes(home) == []


@pytest.mark.hazard(111)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_hook_is_harmless_after_hypaware_was_uninstalled(home: Home, shell: str) -> None:
    run_hook(home, encode(EVENT), shell=shell)
    shutil.rmtree(home.root)
    run_hook(home, encode(EVENT), shell=shell)
    assert not home.root.exists()


def test_without_a_home_in_the_settings_the_hook_uses_that_of_its_environment(home: Home, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / ".hyp").symlink_to(home.root)
    HookNotes(home).announce()
    command = build_hook_command("claude", "/nonexistent/hyp", None)
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "HYP_HOME")}
    for more in ({"HOME": str(tmp_path / "user")}, {"HOME": "/nonexistent", "HYP_HOME": str(home.root)}):
        subprocess.run(["sh", "-c", command], input=encode(EVENT), env={**kept, **more}, check=True)
    assert len(read_notes(home)) == 2


def test_notes_become_the_session_context(home: Home, notes: HookNotes) -> None:
    notes.absorb()
    for number, cwd in enumerate(["/nonexistent/1", "/nonexistent/1", "/nonexistent/2"]):
        run_hook(home, encode({**EVENT, "session_id": f"s{number // 2}", "cwd": cwd}))
    with notes_path(home, "claude").open("a") as file:
        file.write('not json\n{"session_id":"torn","cwd":"/non')
    notes.absorb()
    assert contexts(home) == {"s0": "/nonexistent/1", "s1": "/nonexistent/2"}
    with notes_path(home, "claude").open("a") as file:
        file.write('existent/3"}\n')
    notes.absorb()
    assert contexts(home)["torn"] == "/nonexistent/3"


def test_only_the_path_of_an_ignored_folder_is_kept(home: Home, tmp_path: Path, notes: HookNotes) -> None:
    folder = tmp_path / "private"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (folder / ".hypignore").touch()
    run_hook(home, encode({**EVENT, "cwd": str(folder)}))
    notes.absorb()
    (line,) = session_context.context_path(home.root, "claude").read_text().splitlines()
    assert list(json.loads(line)) == ["session_id", "cwd", "at"]


def test_a_damaged_memory_of_folders_stops_no_note(home: Home, tmp_path: Path, notes: HookNotes) -> None:
    (tmp_path / ".hypignore").write_text("local-only")
    folder_memory.folder_memory_path(home).write_text("{")
    for session in ("first", "second"):
        run_hook(home, encode({**EVENT, "session_id": session, "cwd": str(tmp_path)}))
    notes.absorb()
    assert list(contexts(home)) == ["first", "second"]


def test_notes_that_were_read_are_removed_when_no_hook_can_still_write_them(home: Home, notes: HookNotes) -> None:
    path = notes_path(home, "claude")
    run_hook(home, encode(EVENT))
    notes.absorb()
    assert path.exists()
    os.utime(path, (0, 0))
    notes.absorb()
    assert not path.exists()
    run_hook(home, encode({**EVENT, "session_id": "later"}))
    notes.absorb()
    assert "later" in contexts(home)


def test_notes_that_could_not_be_recorded_are_tried_again(home: Home, notes: HookNotes) -> None:
    run_hook(home, encode(EVENT))
    os.utime(notes_path(home, "claude"), (0, 0))
    context = session_context.context_path(home.root, "claude")
    context.mkdir()
    with pytest.raises(IsADirectoryError):
        notes.absorb()
    context.rmdir()
    notes.absorb()
    assert contexts(home) == {EVENT["session_id"]: EVENT["cwd"]}
