"""The engine process and inline commands with real Spark: lock, cancellation, crash and hand-over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hypaware import config, errors
from hypaware.engine import client
from hypaware.engine.jobs import Event, OnEvent, ignore_events
from hypaware.engine.launcher import Engine
from hypaware.home import Home
from hypaware.home.locks import is_locked
from tests.support.processes import eventually

pytestmark = pytest.mark.spark

_COMMAND = """
import json, sys
from hypaware.home import Home
from hypaware.engine.launcher import Engine
from hypaware.engine import client
from hypaware import config
from hypaware.errors import HypError





def show(event):
    print(json.dumps(event), file=sys.stderr, flush=True)

home = Home.from_environment()
job, args = sys.argv[1], json.loads(sys.argv[2])
engine = Engine(home, jobs="engine_spark_jobs")
try:
    print(json.dumps(client.run_job(client.choose_engine(home, config.load(home), engine), job, args, show)))
except HypError as error:
    print(json.dumps({"error": error.as_json()}))
    sys.exit(error.exit_code)
"""


def is_alive(pid: int) -> bool:
    """An ended process may still be a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Spark:
    home: Home

    def run(self, job: str, args: dict[str, Any] | None = None, on_event: OnEvent = ignore_events) -> dict[str, Any]:
        engine = Engine(self.home, jobs="engine_spark_jobs")
        chosen = client.choose_engine(self.home, config.load(self.home), engine)
        return client.run_job(chosen, job, args or {}, on_event)

    def inline(self, job: str, args: dict[str, Any] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _COMMAND, job, json.dumps(args or {})],
            env={**os.environ, "HYP_HOME": str(self.home.root), "HYP_ENGINE": "inline"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def happened(self) -> list[str]:
        return (self.home.root / "happened").read_text().split("\n")[:-1]


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    for name in ("HYP_ENGINE", "HYP_CRASH_AT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    home = Home(tmp_path / "home")
    home.root.mkdir(mode=0o700)
    home.config.write_text('version = 1\n[engine]\nmaster = "local[2]"\nmemory = "512m"\n')
    yield Spark(home)
    client.stop_engine(home)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {name: str(tmp_path / name) for name in ("began", "until")}


def test_a_warm_engine_runs_concurrent_jobs_and_keeps_no_state_of_them(spark: Spark) -> None:
    events: list[Event] = []
    first = spark.run("count", on_event=events.append)
    assert [event["message"] for event in events if not isinstance(event, bytes)] == [
        "starting the engine",
        "starting Spark",
    ]
    assert spark.happened() == ["on_open 3", "count"], "on_open ran before the first use, with Spark open"
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda n: spark.run("count", {"n": n}), range(1, 13)))
    assert [found["count"] for found in counts] == list(range(1, 13))
    assert {(found["pid"], found["jvm_pid"]) for found in counts} == {(first["pid"], first["jvm_pid"])}
    assert spark.happened().count("on_open 3") == 1

    looks = [spark.run("look") for _ in range(30)]
    assert len({look["group"] for look in looks}) == 30, "each job has its own group"
    few = looks[4]["connections"] + 2
    # The threads of py4j end some time after the jobs.
    eventually(lambda: 1 <= spark.run("look")["connections"] <= few)

    status = client.engine_status(spark.home)
    assert (status["jvm_pid"], status["owns_lake"]) == (first["jvm_pid"], True)
    assert client.stop_engine(spark.home)
    eventually(lambda: not is_alive(first["jvm_pid"]))


def test_cancelling_a_job_ends_only_its_own_spark_tasks(spark: Spark, files: dict[str, str]) -> None:
    before = spark.run("count")
    other = {name: path + "-other" for name, path in files.items()}

    def interrupt() -> None:
        eventually(Path(files["began"]).exists)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        goes_on = pool.submit(spark.run, "hold", other)
        eventually(Path(other["began"]).exists)
        interrupted = pool.submit(interrupt)
        with pytest.raises(errors.Cancelled):
            spark.run("spin", files)
        interrupted.result()
        eventually(lambda: spark.run("look")["active"] == [])
        Path(other["until"]).touch()
        assert goes_on.result()["jvm_pid"] == before["jvm_pid"]
    assert spark.run("count")["pid"] == before["pid"]


def test_tasks_that_ignore_their_cancellation_do_not_block_the_next_job(spark: Spark) -> None:
    before = spark.run("count")

    def interrupt() -> None:
        eventually(lambda: spark.run("look")["tasks"] == 2)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(errors.Cancelled):
            spark.run("loop")
        interrupted.result()

    after = spark.run("count")
    assert after["count"] == 10
    assert after["jvm_pid"] != before["jvm_pid"], "the JVM with the endless tasks was given up"
    eventually(lambda: not is_alive(before["jvm_pid"]))


@pytest.mark.hazard(9)
def test_the_lake_of_a_killed_engine_is_free_when_its_jvm_has_ended(spark: Spark, files: dict[str, str]) -> None:
    first = spark.run("count")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(spark.run, "hold", files)
        eventually(Path(files["began"]).exists)
        os.kill(first["pid"], signal.SIGKILL)
        with pytest.raises(errors.Retryable) as caught:
            waiting.result()
    assert caught.value.kind == "engine_died"
    second = spark.run("count")
    assert second["pid"] != first["pid"]
    assert not is_alive(first["jvm_pid"]), "its JVM had ended before the next one acquired the lake"
    assert spark.happened() == ["on_open 3", "count", "on_open 3", "count"]


def test_an_engine_whose_jvm_died_reports_it_and_exits(spark: Spark, files: dict[str, str]) -> None:
    first = spark.run("count")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(spark.run, "spin", files)
        eventually(Path(files["began"]).exists)
        os.kill(first["jvm_pid"], signal.SIGKILL)
        with pytest.raises(errors.Retryable) as caught:
            waiting.result()
    assert caught.value.kind == "engine_died"
    eventually(lambda: not is_locked(spark.home.engine_lock))
    assert spark.run("count")["pid"] != first["pid"]


def test_two_inline_commands_wait_for_each_other(spark: Spark, files: dict[str, str]) -> None:
    first = spark.inline("hold", files)
    eventually(lambda: Path(files["began"]).exists() or first.poll() is not None)
    second = spark.inline("count")
    assert second.stderr is not None
    said = [json.loads(second.stderr.readline())["message"] for _ in range(2)]
    assert said == ["starting Spark", f"waiting for process {first.pid}, which is using the lake"]
    Path(files["until"]).touch()
    assert first.wait() == 0
    found = json.loads(second.communicate()[0])
    assert (second.returncode, found["pid"]) == (0, second.pid)
    assert first.communicate() is not None


def test_a_waiting_inline_command_hands_its_job_to_a_new_engine(spark: Spark, files: dict[str, str]) -> None:
    holder = spark.inline("hold", files)
    eventually(lambda: Path(files["began"]).exists() or holder.poll() is not None)
    waiting = spark.inline("count")
    assert waiting.stderr is not None
    assert "Spark" in waiting.stderr.readline()
    assert "waiting" in waiting.stderr.readline()
    engine = spark.run("ping")["pid"]
    eventually(lambda: client.engine_status(spark.home)["jobs"])
    Path(files["until"]).touch()
    found = json.loads(waiting.communicate()[0])
    assert (waiting.returncode, found["pid"]) == (0, engine)
    assert holder.communicate() is not None
