"""Crash points: a process is killed at the named point, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware import faults
from hypaware.errors import UsageError
from hypaware.home import Home
from tests.support.processes import fork, run, succeed, wait_until_gone, was_killed

_REACH_THREE_TIMES = """
from hypaware import faults
here, there = faults.crash_point("test.here.after-step", ""), faults.crash_point("test.there.after-step", "")
for turn in (1, 2, 3):
    here()
    print(turn, flush=True)
    there()
"""


@pytest.mark.parametrize(
    ("crash_at", "printed"),
    [
        ("test.here.after-step", ""),
        ("test.here.after-step:1", ""),
        ("test.here.after-step:3", "1\n2\n"),
        ("test.there.after-step:2", "1\n2\n"),
    ],
)
def test_the_process_kills_itself_at_the_nth_visit(home: Home, crash_at: str, printed: str) -> None:
    done = run(_REACH_THREE_TIMES, home, crash_at=crash_at)
    assert was_killed(done)
    assert done.stdout == printed


@pytest.mark.parametrize("crash_at", ["test.here.after-step:4", "test.elsewhere.after-step", "", None])
def test_a_process_that_does_not_reach_the_point_survives(home: Home, crash_at: str | None) -> None:
    done = run(_REACH_THREE_TIMES, home, crash_at=crash_at)
    assert (done.returncode, done.stdout) == (0, "1\n2\n3\n")


@pytest.mark.parametrize("spec", ["a:0", "a:-1", "a:x", "a:1.5", "a:²"])
def test_an_invalid_count_is_rejected(spec: str) -> None:
    with pytest.raises(UsageError, match="an integer of at least 1"):
        faults.parse_spec(spec)


def test_a_crash_point_armed_for_a_job_ends_with_the_job(home: Home) -> None:
    job = """
from hypaware import faults
reach = faults.crash_point("test.job.after-step", "")
with faults.arm("test.job.after-step:2"):
    reach()
with faults.arm(None):
    reach()
reach()
print("alive", flush=True)
with faults.arm("test.job.after-step:2"):
    with faults.arm("test.other.after-step"):
        reach()
    reach()
    print("still alive", flush=True)
    reach()
"""
    done = run(job, home)
    assert was_killed(done)
    assert done.stdout == "alive\nstill alive\n"


def test_a_registered_child_is_killed_first(home: Home, tmp_path: Path) -> None:
    """A JVM that outlives its driver could still commit, as this child would at the end of its input."""
    killer = """
import subprocess, sys
from hypaware import faults
reach = faults.crash_point("test.companion.after-step", "")
outlives = "import pathlib, sys; print(flush=True); sys.stdin.read(); pathlib.Path(sys.argv[1]).touch()"
companion = subprocess.Popen([sys.executable, "-c", outlives, sys.argv[1]],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
companion.stdout.readline()
faults.also_kill(companion.pid)
print(companion.pid, flush=True)
reach()
"""
    done = run(killer, home, tmp_path / "outlived", crash_at="test.companion.after-step")
    assert was_killed(done)
    wait_until_gone(int(done.stdout))
    assert not (tmp_path / "outlived").exists()


def test_a_crash_point_cannot_be_declared_twice(home: Home) -> None:
    declare = "faults.crash_point('test.a.after-b', '')\n"
    twice = f"from hypaware import faults\n{declare}{declare}"
    assert "declared twice" in run(twice, home).stderr


def test_listing_the_points_needs_no_spark(home: Home) -> None:
    listing = "import sys; from hypaware import faults; faults.list_crash_points(); print(*sys.modules)"
    assert "pyspark" not in succeed(listing, home).split()


def test_a_child_process_inherits_the_crash_point(home: Home) -> None:
    def child() -> None:
        with faults.arm("test.forked.after-step"):
            reach()

    reach = faults.crash_point("test.forked.after-step", "reached in a forked child")
    try:
        assert fork(child) == -9
    finally:
        faults._points.pop("test.forked.after-step")
