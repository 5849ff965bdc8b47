"""Large batches are judged elsewhere, with the same result; whoever dies takes nothing along and leaves nobody."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import orjson
import psutil
import pytest

from hypaware.home import Home
from hypaware.server import judges
from hypaware.server.judges import Judges
from hypaware.server.judging import Claims, judge
from hypaware.server.limits import Limits
from hypaware.server.problem import Problem
from tests import processes
from tests.rows import MESSAGES, rows

LIMITS = Limits()
_SERVER = """
import os, signal
import psutil
from hypaware.home import Home
from hypaware.server import judges
from tests.unit.server.test_judges import LIMITS, _body, _claims

judges._LARGE = 1
judges.Judges(LIMITS, processes=2).judge(_claims(), _body(5))
print(*(child.pid for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


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
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    """Nothing of one that has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


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
    before = _processes()
    assert court.judge(_claims(), _body(1)).rows == 1
    assert not set(_processes()) - set(before)
    court.close()


def test_a_judge_that_is_killed_takes_no_batch_along(court: Judges) -> None:
    court.judge(_claims(), _body(5))
    for process in _processes():
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert court.judge(_claims(), _body(7)).rows == 7
    assert court.judge(_claims(), _body(8)).rows == 8


def test_judges_end_with_a_server_that_is_killed(home: Home) -> None:
    done = processes.run(_SERVER, home)
    assert processes.was_killed(done), done.stderr
    left = [int(number) for number in done.stdout.split()]
    assert left
    for pid in left:
        processes.wait_until_gone(pid)
