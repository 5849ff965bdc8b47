"""Large batches are judged elsewhere, with the same result; whoever dies takes nothing along and leaves nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import orjson
import psutil
import pytest

from hypaware.server import judges
from hypaware.server.judges import Judges
from hypaware.server.judging import Claims, judge
from hypaware.server.limits import Limits
from hypaware.server.problem import Problem
from tests.rows import MESSAGES, rows

LIMITS = Limits()


@pytest.fixture
def court(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judges]:
    monkeypatch.setattr(judges, "_LARGE", 1)
    found = Judges(LIMITS, processes=2)
    yield found
    found.close()


def _body(count: int, **columns: Any) -> bytes:
    return b"\n".join(orjson.dumps(row) for row in rows(count, **columns))


def _claims() -> Claims:
    return Claims(MESSAGES, "gw-1", None, None)


def _processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def test_the_verdict_is_the_same(court: Judges) -> None:
    assert court.judge(_claims(), _body(50)) == judge(_claims(), _body(50), LIMITS)
    assert _processes()
    for body in (_body(3, role=1), b'{"role":', _body(1, gateway_id="gw-2")):
        with pytest.raises(Problem) as here:
            judge(_claims(), body, LIMITS)
        with pytest.raises(Problem) as there:
            court.judge(_claims(), body)
        assert (there.value.status, there.value.kind, there.value.detail) == (
            here.value.status,
            here.value.kind,
            here.value.detail,
        )


def test_small_batches_stay_here() -> None:
    court = Judges(LIMITS, processes=2)
    assert court.judge(_claims(), _body(1)).rows == 1
    assert not _processes()
    court.close()


def test_a_judge_that_is_killed_takes_no_batch_along(court: Judges) -> None:
    court.judge(_claims(), _body(5))
    for process in _processes():
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert court.judge(_claims(), _body(7)).rows == 7
    assert court.judge(_claims(), _body(8)).rows == 8


def test_judges_end_with_a_server_that_is_killed() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            court = Judges(LIMITS, processes=2)
            judges._LARGE = 1
            court.judge(_claims(), _body(5))
            os.write(writing, ",".join(str(process.pid) for process in _processes()).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    left = [int(number) for number in os.read(reading, 1_000).decode().split(",")]
    os.close(reading)
    os.waitpid(pid, 0)
    assert left
    _gone, alive = psutil.wait_procs([psutil.Process(each) for each in left if psutil.pid_exists(each)], timeout=30)
    assert alive == []
