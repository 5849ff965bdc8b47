"""`HYP_ENGINE=inline`: the same jobs in the calling process, or in a running engine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hypaware import config, errors
from hypaware.engine import client, inline, launcher
from hypaware.engine.inline import InlineEngine
from hypaware.engine.jobs import Event, Job, JobContext, OnEvent, ignore_events
from hypaware.engine.lake_owner import Wait
from hypaware.engine.launcher import Engine
from hypaware.engine.protocol import JobConnection

if TYPE_CHECKING:
    from tests.unit.engine.conftest import EngineOfTests, Eventually


@pytest.fixture(autouse=True)
def _inline(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYP_ENGINE", "inline")


def start_engine(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        patch.delenv("HYP_ENGINE")
        return int(engine.run("echo")["pid"])


def test_an_inline_job_runs_in_this_process_and_starts_no_engine(engine: EngineOfTests) -> None:
    events: list[Event] = []
    assert engine.run("echo", {"n": 1}) == {"args": {"n": 1}, "pid": os.getpid()}
    assert engine.run("talk", on_event=events.append) == {"five": 5}
    assert events[:2] == [
        {"event": "progress", "message": "one", "done": 1, "total": 3, "file": "a"},
        {"event": "note", "message": "two"},
    ]
    assert client.engine_status(engine.home) == {"state": "stopped"}


def test_an_inline_job_is_sent_to_a_running_engine(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start_engine(engine, monkeypatch)
    assert engine.run("echo")["pid"] == pid


def test_inline_errors_are_the_same_as_in_an_engine(engine: EngineOfTests) -> None:
    with pytest.raises(errors.LakeError) as caught:
        engine.run("fail_in_detail")
    assert (type(caught.value), caught.value.kind) == (errors.LakeError, "odd")


def test_the_traceback_of_an_unexpected_error_is_only_in_the_log(
    engine: EngineOfTests, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.HypError) as caught:
        engine.run("blow_up")
    assert caught.value.kind == "internal"
    log = launcher.engine_log(engine.home)
    assert str(log) in caught.value.message
    assert "ZeroDivisionError" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    assert capfd.readouterr() == ("", "")


def test_a_successful_job_writes_no_log(engine: EngineOfTests) -> None:
    engine.run("echo")
    assert not engine.home.root.exists()


def test_ctrl_c_cancels_an_inline_job(engine: EngineOfTests, files: dict[str, str], eventually: Eventually) -> None:
    command = engine.command("wait", files)
    eventually(Path(files["began"]).exists)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate()
    assert (command.returncode, err) == (130, "")
    assert Path(files["cancelled"]).exists()


def test_a_second_ctrl_c_ends_the_process_with_the_job(
    engine: EngineOfTests, files: dict[str, str], eventually: Eventually
) -> None:
    command = engine.command("persist", files)
    eventually(Path(files["began"]).exists)
    command.send_signal(signal.SIGINT)
    eventually(Path(files["cancelled"]).exists)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate()
    assert (command.returncode, err) == (130, "")
    assert not Path(files["ended"]).exists()


def test_a_missing_requirement_is_reported_before_an_inline_job_runs(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_installed() -> None:
        raise errors.NotReady("no jars", repair="hyp engine install")

    unready = launcher.Engine(engine.home, jobs="tests.support.engine_jobs", check=nothing_installed)
    with pytest.raises(errors.NotReady, match="no jars"):
        client.run_job(client.choose_engine(engine.home, config.load(engine.home), unready), "echo", {})


class BusyLake:
    """A fake Spark whose lake is always owned by another process."""

    spark: Any = SimpleNamespace(sparkContext=None)
    jvm_pid = 4242
    alive = True
    closed = False
    is_wanted = False

    def make_active(self) -> None:
        """Do nothing: there is no JVM."""

    def own_lake(self, wait: Wait) -> None:
        seconds = 0.0
        while True:
            wait(seconds, "")
            seconds += 0.25

    def close(self) -> None:
        self.closed = True


def use_spark(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"version": context.spark.version}
    except Exception as error:
        raise AssertionError("a job must not be able to take this for its own trouble") from error


def make_job_module(monkeypatch: pytest.MonkeyPatch, job: Job) -> str:
    """Return the name of a module whose only job, `echo`, is this one."""
    module = ModuleType("module_with_one_job")
    vars(module).update(JOBS={"echo": job}, on_open=lambda context: None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_an_inline_job_that_waits_for_the_lake_yields_to_a_new_engine(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may hold the lake for its whole idle time, but can run the job at once."""
    taken = BusyLake()
    jobs = make_job_module(monkeypatch, use_spark)
    here = InlineEngine(engine.home, config.load(engine.home), jobs, open_spark=lambda: taken)
    notes: list[Event] = []
    pids: list[int] = []

    def connect(_: Engine, _on_event: OnEvent) -> JobConnection:
        return client.ensure_engine(engine.engine, ignore_events) if pids else here.connect()

    def start_when_told_of_the_wait(event: Event) -> None:
        assert not isinstance(event, bytes)
        if event["event"] == "note":
            notes.append(event)
            pids.append(start_engine(engine, monkeypatch))

    assert client.run_job(engine.engine, "echo", {}, start_when_told_of_the_wait, connect)["pid"] == pids[0]
    assert [event["message"] for event in notes if not isinstance(event, bytes)] == [
        "waiting for another process, which is using the lake"
    ]
    here.close()
    assert taken.closed


def test_a_handed_over_job_is_run_by_the_engine(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller sees one job with one result. Spark is closed in this process before the engine needs the lake."""
    pids: list[int] = []
    taken = BusyLake()

    def engine_turns_up(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        pids.append(start_engine(engine, monkeypatch))
        return use_spark(context, args)

    jobs = make_job_module(monkeypatch, engine_turns_up)
    here = InlineEngine(engine.home, config.load(engine.home), jobs, open_spark=lambda: taken)
    monkeypatch.setattr(inline, "_current", here)
    assert engine.run("echo", {"n": 1}) == {"args": {"n": 1}, "pid": pids[0]}
    assert taken.closed


def test_a_process_that_owns_the_lake_does_not_send_its_job_to_an_engine(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the engine would wait for the JVM of this process, which waits for the engine."""

    class OwnLake(BusyLake):
        def make_active(self) -> None:
            """Do nothing: there is no JVM."""

        def own_lake(self, wait: Wait) -> None:
            """Do nothing: the lake is free."""

    here = InlineEngine(engine.home, config.load(engine.home), "tests.support.engine_jobs", open_spark=OwnLake)
    monkeypatch.setattr(inline, "_current", here)
    engine.home.run.mkdir(parents=True)

    class Asking:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **facts: None

    here.lake_owner.spark(Asking())
    start_engine(engine, monkeypatch)
    assert engine.run("echo")["pid"] == os.getpid()
    inline.close_inline()
    assert engine.run("echo")["pid"] != os.getpid()
