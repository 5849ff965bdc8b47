"""Ctrl-C and disconnected callers: the job is cancelled, and the caller does not hang."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware import errors
from hypaware.engine import client
from hypaware.engine.jobs import Event
from hypaware.home import durable_files

if TYPE_CHECKING:
    pass
    from tests.unit.engine.conftest import EngineOfTests, Eventually


def test_ctrl_c_cancels_the_job_and_the_command_exits_130(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    command = engine.command("wait", files)
    eventually(Path(files["began"]).exists)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate()
    assert (command.returncode, err) == (130, "")
    assert json.loads(out) == {"error": {"kind": "cancelled", "message": "wait was cancelled"}}
    assert Path(files["cancelled"]).exists(), "the command waited for the end of the job"


def test_a_cancelled_job_can_report_what_it_did_before(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    command = engine.command("wait", {**files, "kept": "cancelled; 7 rows are kept"})
    eventually(Path(files["began"]).exists)
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate()
    assert command.returncode == 130
    assert json.loads(out)["error"]["message"] == "cancelled; 7 rows are kept"


def test_a_second_ctrl_c_does_not_wait_for_a_job_that_does_not_end(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    command = engine.command("persist", files)
    eventually(Path(files["began"]).exists)
    command.send_signal(signal.SIGINT)
    eventually(Path(files["cancelled"]).exists)
    command.send_signal(signal.SIGINT)
    assert command.communicate()[1] == ""
    assert command.returncode == 130
    assert not Path(files["ended"]).exists()
    Path(files["until"]).touch()
    eventually(Path(files["ended"]).exists)


def test_a_job_that_ignores_cancellation_does_not_block_the_command_forever(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    def interrupt() -> None:
        eventually(Path(files["began"]).exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(errors.Cancelled):
        engine.run("persist", files, cancel_seconds=0.05)
    assert not Path(files["ended"]).exists()
    Path(files["until"]).touch()


def test_ctrl_c_cancels_a_job_that_is_blocked_while_sending(engine: EngineOfTests, files: dict[str, str]) -> None:
    """The caller must keep reading, or the job never notices that it was cancelled."""
    seen = 0

    def interrupt(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, bytes)
        if seen == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(errors.Cancelled):
        engine.run("pour", files, interrupt)
    assert Path(files["cancelled"]).exists()


def test_ctrl_c_interrupts_a_blocked_write_of_the_caller(engine: EngineOfTests, files: dict[str, str]) -> None:
    """`hyp query ... | less`: the pipe to less is full and is never read."""
    reader, writer = os.pipe()

    def write(event: Event) -> None:
        if isinstance(event, bytes):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            durable_files.write_all(writer, event)

    try:
        with pytest.raises(errors.Cancelled):
            engine.run("pour", files, write)
    finally:
        os.close(reader)
        os.close(writer)
    assert Path(files["cancelled"]).exists()


def test_an_error_in_the_caller_cancels_the_job_and_is_raised(engine: EngineOfTests, files: dict[str, str]) -> None:
    def full(event: Event) -> None:
        if isinstance(event, bytes):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        engine.run("pour", files, full)
    assert Path(files["cancelled"]).exists()


@pytest.mark.parametrize("job", ["wait", "pour"])
def test_the_job_of_a_killed_command_is_cancelled(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually, job: str
) -> None:
    engine.run("ping")
    command = engine.command(job, files)
    eventually(lambda: client.engine_status(engine.home)["jobs"])
    command.kill()
    command.communicate()
    eventually(Path(files["cancelled"]).exists)
    eventually(lambda: client.engine_status(engine.home)["jobs"] == [])


def test_the_sigint_handler_is_restored_after_the_job(engine: EngineOfTests) -> None:
    before = signal.getsignal(signal.SIGINT)
    engine.run("echo")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_command_that_ignores_sigint_still_ignores_it(engine: EngineOfTests) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        seen: list[Event] = []

        def interrupt(event: Event) -> None:
            seen.append(event)
            os.kill(os.getpid(), signal.SIGINT)

        assert engine.run("talk", on_event=interrupt) == {"five": 5}
        assert len(seen) > 3
    finally:
        signal.signal(signal.SIGINT, before)
