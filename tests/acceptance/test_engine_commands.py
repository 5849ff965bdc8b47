"""`hyp engine start`, `status` and `stop`, with the real engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

HYP = Path(sys.executable).with_name("hyp")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HYP_ENGINE", "HYP_CRASH_AT")}
    environment = {**kept, "HYP_HOME": str(tmp_path / "home")}
    yield environment
    subprocess.run([HYP, "engine", "stop"], env=environment, capture_output=True, check=True)


def hyp(environment: dict[str, str], *args: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run([HYP, *args, "--json"], env=environment, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


def test_an_engine_can_be_started_shown_and_stopped(environment: dict[str, str]) -> None:
    assert hyp(environment, "engine", "status") == (0, {"state": "stopped"})
    code, started = hyp(environment, "engine", "start")
    assert (code, started["state"], started["owns_lake"], started["jobs"]) == (0, "running", True, [])
    _, again = hyp(environment, "engine", "start")
    assert (again["pid"], again["jvm_pid"]) == (started["pid"], started["jvm_pid"])
    assert hyp(environment, "engine", "stop") == (0, {"stopped": True})
    assert hyp(environment, "engine", "stop") == (0, {"stopped": False})
    assert hyp(environment, "engine", "status") == (0, {"state": "stopped"})


def test_an_engine_starts_for_a_user_without_an_account(environment: dict[str, str]) -> None:
    """As in a container that runs with any user id."""
    nameless = ["unshare", "--user", "--map-user=4100100100", "--map-group=4100100100"]
    if shutil.which("unshare") is None or subprocess.run([*nameless, "true"], check=False).returncode != 0:
        pytest.skip("this user may not make namespaces of users")
    done = subprocess.run(
        [*nameless, HYP, "engine", "start", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["owns_lake"]


def test_an_engine_without_its_jars_is_not_started(environment: dict[str, str], tmp_path: Path) -> None:
    environment["HYP_CACHE"] = str(tmp_path / "nothing here")
    code, answer = hyp(environment, "engine", "start")
    error = answer["error"]
    assert isinstance(error, dict)
    assert (code, error["kind"], error["repair"]) == (3, "engine_not_installed", ["hyp engine install"])
    assert hyp(environment, "engine", "status") == (0, {"state": "stopped"})


def test_ctrl_c_while_spark_starts_ends_the_command_and_leaves_a_usable_engine(
    environment: dict[str, str],
) -> None:
    starting = subprocess.Popen(
        [HYP, "engine", "start"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert starting.stderr is not None
    while "starting Spark" not in (line := starting.stderr.readline()):
        assert line, "it ended before Spark started"
    starting.send_signal(signal.SIGINT)
    starting.communicate()
    assert starting.returncode == 130
    code, started = hyp(environment, "engine", "start")
    assert (code, started["owns_lake"]) == (0, True)
