"""Large batches are validated in worker processes with the same result; a killed worker loses no batch."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from hypaware.home import Home
from hypaware.server import validation
from hypaware.server.http import HttpProblem
from hypaware.server.limits import ServerLimits
from hypaware.server.validation import BatchClaims, ValidatorPool, validate_batch
from tests.support import processes
from tests.support.rows import MESSAGES, rows

LIMITS = ServerLimits()
_SERVER = """
import os, signal
import psutil
from hypaware.home import Home
from hypaware.server import validation

from tests.unit.server.test_batch_validation import LIMITS, _body, _claims

validation._LARGE_BATCH = 1
validation.ValidatorPool(LIMITS, processes=2).validate(_claims(), _body(5), Home.from_environment().root.parent)
print(*(child.pid for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ValidatorPool]:
    monkeypatch.setattr(validation, "_LARGE_BATCH", 1)
    found = ValidatorPool(LIMITS, processes=2)
    yield found
    found.close()


def _body(count: int, **columns: Any) -> bytes:
    return b"\n".join(orjson.dumps(row) for row in rows(count, **columns))


def _claims() -> BatchClaims:
    return BatchClaims(MESSAGES, "gw-1", None, None)


def _processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    """Return the command line, or an empty list if the process has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_worker_and_server_process_validate_alike(pool: ValidatorPool, tmp_path: Path) -> None:
    found = pool.validate(_claims(), _body(50), tmp_path)
    assert isinstance(found.lines, Path)
    assert replace(found, lines=found.lines.read_bytes()) == validate_batch(_claims(), _body(50), LIMITS)
    assert list(tmp_path.iterdir()) == [found.lines]
    assert _processes()
    for body in (_body(3, role=1), b'{"role":', _body(1, gateway_id="gw-2")):
        with pytest.raises(HttpProblem) as here:
            validate_batch(_claims(), body, LIMITS)
        with pytest.raises(HttpProblem) as there:
            pool.validate(_claims(), body, tmp_path)
        assert (there.value.status, there.value.kind, there.value.detail) == (
            here.value.status,
            here.value.kind,
            here.value.detail,
        )
    assert list(tmp_path.iterdir()) == [found.lines]


def test_a_worker_that_cannot_write_leaves_no_file_and_reports_the_error(pool: ValidatorPool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pool.validate(_claims(), _body(5), tmp_path / "missing")
    assert pool.validate(_claims(), _body(5), tmp_path).rows == 5


def test_a_long_number_in_any_line_is_stored_with_every_digit() -> None:
    numbers = [1, 2**53 + 1, 2**63 - 1, 10**30]
    lines = [json.dumps(row) for number in numbers for row in rows(1, raw_frame={"number": number})]
    body = "\n".join(lines).encode()
    found = validate_batch(_claims(), body, LIMITS)
    assert isinstance(found.lines, bytes)
    stored = [orjson.loads(line)["row"]["raw_frame"] for line in found.lines.splitlines()]
    assert stored == [f'{{"number":{number}}}' for number in numbers]


def test_small_batches_are_validated_in_the_server_process(tmp_path: Path) -> None:
    pool = ValidatorPool(LIMITS, processes=2)
    before = _processes()
    assert pool.validate(_claims(), _body(1), tmp_path).rows == 1
    assert not list(tmp_path.iterdir())
    assert not set(_processes()) - set(before)
    pool.close()


def test_killed_worker_loses_no_batch(pool: ValidatorPool, tmp_path: Path) -> None:
    pool.validate(_claims(), _body(5), tmp_path)
    for process in _processes():
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert pool.validate(_claims(), _body(7), tmp_path).rows == 7
    assert pool.validate(_claims(), _body(8), tmp_path).rows == 8


def test_workers_end_with_a_killed_server(home: Home) -> None:
    done = processes.run(_SERVER, home)
    assert processes.was_killed(done), done.stderr
    left = [int(number) for number in done.stdout.split()]
    assert left
    for pid in left:
        processes.wait_until_gone(pid)
