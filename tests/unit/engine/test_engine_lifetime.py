"""The lifetime of an engine: one per home, with any leftover files, started, stopped and killed in any way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hypaware import config, errors
from hypaware.engine import client, launcher
from hypaware.engine.lake_owner import LakeOwner, on_open_step, start_spark
from hypaware.engine.protocol import JobConnection, Message, hello_message
from hypaware.engine.server import JobServer
from hypaware.home import Home
from hypaware.home.locks import is_locked, signal_holder, try_lock
from tests.support.processes import PATIENCE

if TYPE_CHECKING:
    from tests.unit.engine.conftest import EngineOfTests, Eventually


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def lock_held(home: Home) -> Iterator[None]:
    lock = try_lock(home.engine_lock, with_pid=False)
    assert lock is not None
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def fake_engine(home: Home, play: Callable[[JobConnection], None], times: int = 1) -> Iterator[None]:
    """A fake engine. `play` handles each connection, then the engine ends."""

    def live() -> None:
        with lock_held(home), launcher.listen_on_socket(home) as listener:
            listening.set()
            for left in reversed(range(times)):
                sock, _ = listener.accept()
                if left == 0:
                    listener.close()
                    launcher.remove_socket(home)
                with JobConnection(sock) as connection:
                    play(connection)

    listening = threading.Event()
    thread = threading.Thread(target=live)
    thread.start()
    listening.wait()
    yield
    thread.join()


# Starting


def test_a_stale_socket_and_pid_file_do_not_block_an_engine(engine: EngineOfTests) -> None:
    """The pid of a killed engine may belong to another process now, which must not be killed."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with lock_held(engine.home):
            launcher.listen_on_socket(engine.home).close()
            launcher.engine_pid_file(engine.home).write_text(f"{bystander.pid}\n")
        assert engine.home.engine_socket.exists()
        assert client.engine_status(engine.home) == {"state": "stopped"}
        assert client.stop_engine(engine.home) is False
        assert engine.run("echo")["pid"] not in (bystander.pid, os.getpid())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_plain_file_at_the_socket_path_does_not_block_an_engine(engine: EngineOfTests) -> None:
    engine.home.engine.mkdir(parents=True, mode=0o700)
    engine.home.engine_socket.write_text("not a socket")
    assert engine.run("echo", {"n": 1})["args"] == {"n": 1}


def test_concurrent_commands_start_one_engine(engine: EngineOfTests) -> None:
    commands = [engine.command("echo", {"n": n}) for n in range(8)]
    answers = [json.loads(command.communicate()[0]) for command in commands]
    assert [answer["args"]["n"] for answer in answers] == list(range(8))
    assert len({answer["pid"] for answer in answers}) == 1
    assert launcher.engine_log(engine.home).read_text().count(" is listening on ") == 1


def test_a_second_engine_process_exits_silently(engine: EngineOfTests) -> None:
    first = engine.run("echo")["pid"]
    command = [sys.executable, "-m", "hypaware.engine.process", "--home", str(engine.home.root)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert engine.run("echo")["pid"] == first


def test_an_engine_process_can_be_started_manually(engine: EngineOfTests, eventually: Eventually) -> None:
    command = [sys.executable, "-m", "hypaware.engine.process", "--home", str(engine.home.root)]
    process = subprocess.Popen([*command, "--jobs", "tests.support.engine_jobs"], stderr=subprocess.PIPE)
    with process:
        eventually(lambda: client.engine_status(engine.home)["state"] == "running")
        assert engine.run("echo")["pid"] == process.pid
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


def test_a_missing_requirement_is_reported_before_an_engine_starts(engine: EngineOfTests) -> None:
    def nothing_installed() -> None:
        raise errors.NotReady("no jars", repair="hyp engine install")

    unready = replace(engine.engine, check=nothing_installed)
    with pytest.raises(errors.NotReady, match="no jars"):
        client.run_job(client.choose_engine(engine.home, config.load(engine.home), unready), "echo", {})
    assert not launcher.engine_log(engine.home).exists()
    assert not is_locked(engine.home.engine_lock)


def test_an_engine_that_fails_to_start_is_reported_with_its_log(engine: EngineOfTests) -> None:
    good = config.load(engine.home)
    engine.run("echo")
    client.stop_engine(engine.home)
    engine.configure('[engine]\nmaster = "local[*]"\nmastre = "local[*]"')
    with pytest.raises(errors.Retryable) as caught:
        client.run_job(client.choose_engine(engine.home, good, engine.engine), "echo", {})
    assert caught.value.kind == "engine_failed"
    assert "mastre" in caught.value.message
    assert "Traceback" not in caught.value.message
    assert " is listening on " not in caught.value.message, "that message is from the previous engine"
    assert not is_locked(engine.home.engine_lock)


def test_a_large_log_is_rotated_when_an_engine_starts(engine: EngineOfTests) -> None:
    log = launcher.engine_log(engine.home)
    log.parent.mkdir(parents=True, mode=0o700)
    log.write_bytes(b"x" * (launcher.LOG_LIMIT + 1))
    engine.run("echo")
    assert log.with_name("engine.log.1").stat().st_size == launcher.LOG_LIMIT + 1
    assert "x" * 100 not in log.read_text()


def test_an_engine_of_another_version_is_replaced(engine: EngineOfTests) -> None:
    """This happens after an upgrade. The running jobs of the old engine can finish."""
    asked: list[Message | bytes | None] = []

    def older(connection: JobConnection) -> None:
        connection.send({**hello_message(1), "version": "0.0.1", "protocol": 0})
        asked.append(connection.receive())

    with fake_engine(engine.home, older):
        assert engine.run("echo", {"n": 1})["args"] == {"n": 1}
    assert asked == [{"type": "stop", "grace": None}]


def test_a_home_with_a_long_path_has_its_socket_in_a_private_folder_in_tmp(
    engine: EngineOfTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with another TMPDIR finds the same socket."""
    long = replace(engine, engine=replace(engine.engine, home=Home(tmp_path / ("long-" * 30))))
    pid = long.run("echo")["pid"]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert json.loads(long.command("echo").communicate()[0])["pid"] == pid
    folder = long.home.engine_socket.parent
    assert not folder.is_relative_to(long.home.root)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert client.stop_engine(long.home) is True
    assert not folder.exists()


@pytest.mark.parametrize("trick", ["open to others", "a link"])
def test_a_socket_folder_that_is_not_private_is_rejected_by_both_sides(
    engine: EngineOfTests, tmp_path: Path, trick: str
) -> None:
    """Any user can create files in the temporary directory, and could impersonate the engine."""
    long = replace(engine, engine=replace(engine.engine, home=Home(tmp_path / ("long-" * 30))))
    folder = long.home.engine_socket.parent
    if trick == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    try:
        with pytest.raises(errors.NotReady, match="not private to you"):
            long.run("echo")
        with lock_held(long.home), pytest.raises(errors.NotReady, match="not private to you"):
            launcher.listen_on_socket(long.home)
    finally:
        folder.unlink() if trick == "a link" else folder.rmdir()


# Ending


def test_an_idle_engine_exits_and_leaves_no_files(engine: EngineOfTests, eventually: Eventually) -> None:
    engine.configure('[engine]\nidle_timeout = "50ms"')
    engine.run("echo")
    eventually(lambda: not is_locked(engine.home.engine_lock))
    assert not engine.home.engine_socket.exists()
    assert not launcher.engine_pid_file(engine.home).exists()


def test_an_engine_with_a_job_is_not_idle(engine: EngineOfTests, files: dict[str, str], eventually: Eventually) -> None:
    engine.configure('[engine]\nidle_timeout = "1ms"')
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "wait", files)
        eventually(Path(files["began"]).exists)
        pid = client.engine_status(engine.home)["pid"]
        for _ in range(50):
            assert client.engine_status(engine.home)["pid"] == pid
        Path(files["until"]).touch()
        assert waiting.result() == {"waited": True, "pid": pid}


def test_no_job_is_lost_when_an_engine_is_about_to_exit(engine: EngineOfTests, eventually: Eventually) -> None:
    """Each engine ends within a millisecond after its last job, while the next callers are connecting."""
    engine.configure('[engine]\nidle_timeout = "1ms"')
    with ThreadPoolExecutor(4) as pool:
        answers: list[dict[str, Any]] = []
        for first in range(0, 60, 6):
            answers += pool.map(lambda n: engine.run("echo", {"n": n}), range(first, first + 6))
            # Some callers find an engine that is ending, others find none.
            if first % 4 == 0:
                eventually(lambda: not is_locked(engine.home.engine_lock))
    assert [answer["args"]["n"] for answer in answers] == list(range(60))
    assert len({answer["pid"] for answer in answers}) > 1, "no engine ended between the callers, so nothing was tested"


def test_an_engine_that_is_ending_refuses_every_job(engine: EngineOfTests) -> None:
    """A caller may have been greeted just before. Its job must not be started and then interrupted."""
    jobs = "tests.support.engine_jobs"
    current = config.load(engine.home)
    owner = LakeOwner(engine.home, lambda: start_spark(engine.home, current.engine), on_open_step(jobs))
    server = JobServer(engine.home, jobs, lambda: current, owner, launcher.engine_log(engine.home))
    ours, theirs = socket.socketpair()
    with JobConnection(ours) as connection:
        server.attach(theirs)
        assert connection.receive() == hello_message(os.getpid())
        server.drain(grace=None)
        # It may have closed the connection, which has the same meaning.
        with suppress(ConnectionError):
            connection.send({"type": "job", "job": "echo"})
        assert connection.receive() in ({"type": "refused"}, None)
    ours, theirs = socket.socketpair()
    with JobConnection(ours) as connection:
        server.attach(theirs)
        connection.receive()
        connection.send({"type": "job", "job": "echo"})
        assert connection.receive() == {"type": "refused"}


@pytest.mark.parametrize("goodbye", [{"type": "refused"}, None])
def test_a_job_that_was_not_accepted_is_sent_to_the_next_engine(engine: EngineOfTests, goodbye: Message | None) -> None:
    asked: list[Message | bytes | None] = []

    def ending(connection: JobConnection) -> None:
        connection.send(hello_message(1))
        asked.append(connection.receive())
        if goodbye is not None:
            connection.send(goodbye)

    with fake_engine(engine.home, ending):
        assert engine.run("echo", {"n": 1})["args"] == {"n": 1}
    assert isinstance(asked[0], dict)
    assert asked[0]["job"] == "echo"


def test_a_job_that_no_engine_accepts_fails(engine: EngineOfTests) -> None:
    def greet(connection: JobConnection) -> None:
        connection.send(hello_message(1))

    with (
        fake_engine(engine.home, greet, times=client.ATTEMPTS),
        pytest.raises(errors.Retryable) as caught,
    ):
        engine.run("echo")
    assert caught.value.kind == "engine_failed"


def test_an_accepted_job_is_never_repeated_silently(engine: EngineOfTests) -> None:
    def dying(connection: JobConnection) -> None:
        connection.send(hello_message(1))
        connection.receive()
        connection.send({"type": "accepted", "id": "1"})

    with fake_engine(engine.home, dying), pytest.raises(errors.Retryable) as caught:
        engine.run("echo")
    assert caught.value.kind == "engine_died"
    assert not launcher.engine_log(engine.home).exists(), "no other engine was started"


def test_a_killed_engine_fails_its_job_and_the_next_job_starts_another(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    before = engine.run("echo")["pid"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "wait", files)
        eventually(Path(files["began"]).exists)
        os.kill(before, signal.SIGKILL)
        with pytest.raises(errors.Retryable, match="no acknowledged data is lost, run the command again") as caught:
            waiting.result()
    assert (caught.value.kind, caught.value.exit_code) == ("engine_died", 1)
    assert engine.home.engine_socket.exists(), "the files that a kill leaves"
    assert engine.run("echo")["pid"] != before


def test_sigterm_waits_for_a_short_job(engine: EngineOfTests, files: dict[str, str], eventually: Eventually) -> None:
    pid = engine.run("echo")["pid"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "wait", files)
        eventually(Path(files["began"]).exists)
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not engine.home.engine_socket.exists())
        Path(files["until"]).touch()
        assert waiting.result() == {"waited": True, "pid": pid}
    eventually(lambda: not is_alive(pid))
    assert not launcher.engine_pid_file(engine.home).exists()


def test_stop_cancels_a_job_that_does_not_end(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    pid = engine.run("echo")["pid"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "wait", files)
        eventually(Path(files["began"]).exists)
        assert client.stop_engine(engine.home, grace=0.0) is True
        eventually(lambda: not is_alive(pid))
        with pytest.raises(errors.Cancelled):
            waiting.result()
    assert Path(files["cancelled"]).exists()
    assert client.stop_engine(engine.home) is False


def test_an_engine_that_hangs_is_reported_and_can_be_stopped(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = engine.run("echo")["pid"]
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(launcher, "ANSWER_SECONDS", 0.05)
        assert client.engine_status(engine.home) == {"state": "not_answering", "pid": pid}
        with pytest.raises(errors.NotReady) as caught:
            engine.run("echo")
        assert (caught.value.kind, caught.value.repair) == ("engine_not_answering", ("hyp engine stop",))
        assert client.stop_engine(engine.home, 0.05) is True
    assert engine.run("echo")["pid"] != pid


def test_an_engine_that_never_exits_is_killed_by_stop(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    """It would exit for another version after its job, which never ends."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "persist", files)
        eventually(Path(files["began"]).exists)
        found = launcher.connect_engine(engine.home)
        assert found is not None
        with found[0] as connection:
            launcher.ask_to_stop(connection)
        eventually(lambda: not engine.home.engine_socket.exists())
        assert client.stop_engine(engine.home, 0.05) is True
        with pytest.raises(errors.Retryable):
            waiting.result()


def test_stop_does_not_kill_a_process_that_reuses_the_pid_of_an_engine(home: Home) -> None:
    """A killed engine leaves its pid in the lock file, and the next one has not written its own yet."""
    sleeper = [sys.executable, "-c", "input()"]
    with lock_held(home), subprocess.Popen(sleeper, stdin=subprocess.PIPE) as other:
        home.engine_lock.write_text(f"{other.pid}\n")
        with pytest.raises(errors.NotReady, match="another container") as refused:
            client.stop_engine(home, 0.0)
        assert refused.value.kind == "engine_elsewhere"
        other.communicate(b"\n", timeout=PATIENCE)
    assert other.returncode == 0


def test_stop_waits_for_a_killed_engine_that_still_holds_its_lock(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are closed one by one, so for a moment no process has the lock file open and the lock is held."""
    killed: list[int] = []
    lock = try_lock(home.engine_lock, with_pid=False)
    assert lock is not None
    home.engine_lock.write_text("4242\n")

    def kill(_path: Path, pid: int, _number: signal.Signals) -> bool:
        if not killed:
            threading.Timer(0.1, os.close, [lock]).start()
        killed.append(pid)
        return len(killed) == 1

    monkeypatch.setattr(client, "signal_holder", kill)
    assert client.stop_engine(home, 0.0) is True
    assert killed == [4242]


def test_an_engine_whose_home_was_removed_exits(engine: EngineOfTests, eventually: Eventually) -> None:
    pid = engine.run("echo")["pid"]
    shutil.rmtree(engine.home.root)
    eventually(lambda: not is_alive(pid))


def test_an_engine_leaves_the_files_of_a_replacement_home_unchanged(
    engine: EngineOfTests, eventually: Eventually
) -> None:
    first = engine.run("echo")["pid"]
    engine.home.root.rename(engine.home.root.with_name("moved away"))
    second = engine.run("echo")["pid"]
    eventually(lambda: not is_alive(first))
    assert engine.run("echo")["pid"] == second
    assert int(launcher.engine_pid_file(engine.home).read_text()) == second


def test_stop_does_not_stop_a_newer_engine(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job starts another engine while `stop` is running."""
    first = engine.run("echo")["pid"]
    killed: list[int] = []
    next_one: list[int] = []

    def kill_and_go_on(path: Path, pid: int, number: signal.Signals) -> bool:
        done = signal_holder(path, pid, number)
        if not killed:
            killed.append(pid)
            monkeypatch.setattr(launcher, "ANSWER_SECONDS", patience)
            next_one.append(engine.run("echo")["pid"])
        return done

    patience = launcher.ANSWER_SECONDS
    monkeypatch.setattr(client, "signal_holder", kill_and_go_on)
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(launcher, "ANSWER_SECONDS", 0.05)
    assert client.stop_engine(engine.home, 0.0) is True
    assert killed == [first]
    assert engine.run("echo")["pid"] == next_one[0]


def test_status_describes_the_engine_and_creates_no_files(engine: EngineOfTests) -> None:
    assert client.engine_status(engine.home) == {"state": "stopped"}
    assert not engine.home.root.exists()
    pid = engine.run("echo")["pid"]
    found = client.engine_status(engine.home)
    assert (found["state"], found["pid"], found["jobs"]) == ("running", pid, [])
    assert (found["jvm_pid"], found["owns_lake"]) == (None, False)
    assert Path(found["log"]).exists()
