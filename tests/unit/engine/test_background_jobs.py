"""Engine jobs of background tasks: result, error and cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.engine import client
from hypaware.engine.background import run_cancellable_job
from hypaware.engine.launcher import Engine
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from tests.support.processes import PATIENCE, eventually

JOBS = "tests.support.engine_jobs"


@pytest.fixture
def engine(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    for name in ("HYP_ENGINE", "HYP_CRASH_AT"):
        monkeypatch.delenv(name, raising=False)
    yield Engine(home, jobs=JOBS, check=lambda: None)
    client.stop_engine(home)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {name: str(tmp_path / name) for name in ("began", "until", "cancelled", "ended")}


async def cancelled_when(job: asyncio.Task[Any], condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


def test_result_and_error_of_a_job_are_returned(engine: Engine) -> None:
    heard: list[object] = []
    assert asyncio.run(run_cancellable_job(engine, "echo", {"a": 1}))["args"] == {"a": 1}
    assert asyncio.run(run_cancellable_job(engine, "talk", {}, heard.append)) == {"five": 5}
    assert {"event": "note", "message": "two"} in heard
    with pytest.raises(LakeError, match="the table is odd"):
        asyncio.run(run_cancellable_job(engine, "fail_in_detail", {}))


@pytest.mark.hazard(29)
def test_waiting_job_is_cancelled_and_its_end_awaited(engine: Engine, files: dict[str, str]) -> None:
    async def run() -> None:
        job = asyncio.create_task(run_cancellable_job(engine, "wait", files, cancel_seconds=PATIENCE))
        await cancelled_when(job, Path(files["began"]).exists)
        assert Path(files["cancelled"]).exists()

    asyncio.run(run())


@pytest.mark.hazard(29)
def test_job_that_does_not_end_does_not_delay_the_daemon(engine: Engine, files: dict[str, str]) -> None:
    async def run() -> None:
        job = asyncio.create_task(run_cancellable_job(engine, "persist", files, cancel_seconds=0.01))
        await cancelled_when(job, Path(files["began"]).exists)
        assert not Path(files["ended"]).exists()

    asyncio.run(run())
    Path(files["until"]).touch()
    eventually(Path(files["ended"]).exists)


@pytest.mark.hazard(29)
def test_starting_engine_does_not_delay_the_daemon_and_gets_no_job(
    home: Home, files: dict[str, str], engine: Engine
) -> None:
    starting, go_on = threading.Event(), threading.Event()

    def slow_check() -> None:
        starting.set()
        go_on.wait()

    async def run() -> None:
        starting_engine = Engine(home, jobs=JOBS, check=slow_check)
        job = asyncio.create_task(run_cancellable_job(starting_engine, "wait", files, cancel_seconds=0.01))
        await cancelled_when(job, starting.is_set)

    asyncio.run(run())
    go_on.set()
    eventually(lambda: not any(thread.name == "job wait" for thread in threading.enumerate()))
    assert client.engine_status(home)["jobs"] == []
    assert not Path(files["began"]).exists()


def test_engine_that_dies_during_a_job_is_reported(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYP_CRASH_AT", "engine_jobs.step.before-nothing")
    with pytest.raises(Retryable) as died:
        asyncio.run(run_cancellable_job(engine, "reach", {}))
    assert died.value.kind == "engine_died"
