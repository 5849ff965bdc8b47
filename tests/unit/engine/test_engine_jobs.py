"""Jobs of real engine processes: arguments, results and errors."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware import errors, telemetry
from hypaware.engine import client, launcher
from hypaware.engine.jobs import Event
from hypaware.home import Home
from tests.support import processes

if TYPE_CHECKING:
    pass
    from tests.unit.engine.conftest import EngineOfTests, Eventually


def test_the_first_job_starts_an_engine_and_the_next_one_reuses_it(engine: EngineOfTests) -> None:
    first = engine.run("echo", {"n": 1})
    second = engine.run("echo", {"n": 2})
    assert first["args"] == {"n": 1}
    assert second["args"] == {"n": 2}
    assert first["pid"] == second["pid"] != os.getpid()


def test_the_caller_receives_the_events_of_a_job_in_order(engine: EngineOfTests) -> None:
    engine.run("ping")
    events: list[Event] = []
    assert engine.run("talk", on_event=events.append) == {"five": 5}
    chunks = [event for event in events if isinstance(event, bytes)]
    assert b"".join(chunks) == b"\x00\xff" * 1_500_000
    assert events == [
        {"event": "progress", "message": "one", "done": 1, "total": 3, "file": "a"},
        {"event": "note", "message": "two"},
        *chunks,
        {"event": "progress", "message": "four", "done": None, "total": None},
    ]


def test_starting_the_engine_is_announced_once_and_only_when_it_happens(engine: EngineOfTests) -> None:
    events: list[Event] = []
    engine.run("ping", on_event=events.append)
    engine.run("ping", on_event=events.append)
    assert events == [{"event": "progress", "message": "starting the engine", "done": None, "total": None}]


def test_the_first_jobs_of_an_engine_can_arrive_at_the_same_time(home: Home) -> None:
    """Two threads that import PySpark at once could get a partially initialized module."""
    together = """
import threading
from concurrent.futures import ThreadPoolExecutor
from hypaware import config, errors
from hypaware.engine import client
from hypaware.engine.inline import InlineEngine
from hypaware.engine.launcher import Engine
from hypaware.home import Home

def no_spark():
    raise errors.NotReady("no Spark here", kind="no_spark")

home = Home.from_environment()
engine = InlineEngine(home, config.load(home), "hypaware.jobs", no_spark)
ready = threading.Barrier(2)

def job(name):
    ready.wait()
    try:
        client.run_job(Engine(home), name, {"sql": "SELECT 1"}, connect=lambda *_: engine.connect())
    except errors.HypError as error:
        return error.kind

with ThreadPoolExecutor() as pool:
    print(*pool.map(job, ("verify", "query")))
"""
    assert "internal" not in processes.succeed(together, home)


def test_jobs_run_at_the_same_time(engine: EngineOfTests, files: dict[str, str], eventually: Eventually) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.run, "wait", files)
        eventually(Path(files["began"]).exists)
        other = engine.run("echo")
        assert "wait" in [job["job"] for job in client.engine_status(engine.home)["jobs"]]
        Path(files["until"]).touch()
        assert waiting.result() == {"waited": True, "pid": other["pid"]}


def test_the_engine_is_detached_from_the_command_that_started_it(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash point and the run id of one command must not apply to the jobs of others."""
    monkeypatch.setenv("DEV_RUN_ID", "of-the-caller")
    monkeypatch.setenv("HYP_CRASH_AT", "lake.commit.after-commit")
    found = engine.run("surroundings")
    assert found["cwd"] == "/"
    assert found["leads_session"]
    assert found["reads_nothing"]
    assert found["umask"] == 0o077
    assert found["environment"]["HYP_HOME"] == str(engine.home.root)
    assert not {"DEV_RUN_ID", "HYP_CRASH_AT", "HYP_ENGINE"} & set(found["environment"])


def test_files_of_the_engine_are_private_to_their_owner(engine: EngineOfTests) -> None:
    pid = engine.run("echo")["pid"]
    assert int(launcher.engine_pid_file(engine.home).read_text()) == pid
    assert stat.S_ISSOCK(engine.home.engine_socket.stat().st_mode)
    for path in engine.home.root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_job_uses_the_config_at_the_time_it_starts(engine: EngineOfTests) -> None:
    engine.configure("[retention]\ndefault_days = 7")
    assert engine.run("surroundings")["days"] == 7
    engine.configure("[retention]\ndefault_days = 30")
    assert engine.run("surroundings")["days"] == 30


def test_telemetry_of_a_job_has_the_run_id_of_its_caller(engine: EngineOfTests) -> None:
    assert engine.run("surroundings")["run_id"] == telemetry.dev_run_id()


def test_the_client_imports_no_slow_modules() -> None:
    """Every command imports this module."""
    heavy = ["pyspark", "pyarrow", "py4j", "sqlalchemy", "aiohttp", "asyncio", "logging", "subprocess"]
    code = f"import sys, hypaware.engine.client; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("raised", "exit_code"),
    [
        ("HypError", 1),
        ("UsageError", 2),
        ("NotReady", 3),
        ("Retryable", 1),
        ("QueryRefused", 1),
        ("Cancelled", 130),
    ],
)
def test_an_error_of_a_job_is_raised_in_the_caller(engine: EngineOfTests, raised: str, exit_code: int) -> None:
    with pytest.raises(errors.HypError, match=r"^it did not work$") as caught:
        engine.run("fail", {"error": raised})
    assert type(caught.value).__name__ == raised
    assert caught.value.exit_code == exit_code


def test_an_error_keeps_its_kind_and_repair(engine: EngineOfTests) -> None:
    with pytest.raises(errors.LakeError) as caught:
        engine.run("fail_in_detail")
    assert caught.value.as_json() == {
        "kind": "odd",
        "message": "the table is odd",
        "repair": ["hyp verify", "hyp verify --repair"],
    }


def test_an_unexpected_error_names_the_log_that_has_the_traceback(engine: EngineOfTests) -> None:
    with pytest.raises(errors.HypError) as caught:
        engine.run("blow_up")
    log = launcher.engine_log(engine.home)
    assert caught.value.kind == "internal"
    assert str(log) in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "Traceback" in log.read_text()
    assert "ZeroDivisionError: integer division" in log.read_text()


@pytest.mark.parametrize("job", ["leave", "say_what_json_cannot"])
def test_a_failing_job_does_not_end_the_engine(engine: EngineOfTests, job: str) -> None:
    before = engine.run("echo")["pid"]
    with pytest.raises(errors.HypError) as caught:
        engine.run(job)
    assert caught.value.kind == "internal"
    assert engine.run("echo")["pid"] == before


def test_an_unknown_job_is_reported(engine: EngineOfTests) -> None:
    with pytest.raises(errors.HypError, match="the engine has no job 'juggle'"):
        engine.run("juggle")


def test_an_invalid_value_of_hyp_engine_is_rejected(engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYP_ENGINE", "in-line")
    with pytest.raises(errors.UsageError, match="in-line"):
        engine.run("echo")


def test_a_crash_point_is_sent_with_the_job_and_kills_the_engine(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also applies to a running engine, and only to that job."""
    before = engine.run("reach")["survived"]
    monkeypatch.setenv("HYP_CRASH_AT", "engine_jobs.step.before-nothing:2")
    assert engine.run("reach")["survived"] == before
    assert engine.run("reach")["survived"] == before
    with pytest.raises(errors.Retryable) as caught:
        engine.run("reach", {"times": 2})
    assert caught.value.kind == "engine_died"
    monkeypatch.delenv("HYP_CRASH_AT")
    assert engine.run("reach", {"times": 2})["survived"] != before


def test_a_job_with_an_unknown_crash_point_does_not_start(
    engine: EngineOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYP_CRASH_AT", "engine_jobs.step.before-something")
    with pytest.raises(errors.HypError, match="unknown crash point") as caught:
        engine.run("reach")
    assert caught.value.exit_code == 2
    monkeypatch.delenv("HYP_CRASH_AT")
    assert engine.run("echo")["pid"]
