"""The central server as a team uses it: machines deliver, the operator queries with SQL."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hypaware.home import Home
from hypaware.spool import reader
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import Gateway, enrol
from tests.support.rows import rows

DATASET = "ai_gateway_messages"
RECEIVE = ("server", "run", "--listen", "127.0.0.1:0")
RECEIVE_ONLY = (*RECEIVE, "--no-flush")
BY_GATEWAY = f"SELECT gateway_id, count(*) AS n, count(DISTINCT part_id) AS parts FROM {DATASET} GROUP BY 1 ORDER BY 1"


@pytest.fixture
def process(hyp: Hyp) -> Iterator[subprocess.Popen[bytes]]:
    hyp.home.mkdir(mode=0o700)
    (hyp.home / "config.toml").write_text('version = 1\n[flush]\ninterval = "1s"\n')
    with hyp.start(*RECEIVE) as running:
        yield running
        running.kill()


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout
    return process.stdout.readline().decode().removeprefix("listening on ").strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert b"Traceback" not in err, err


@pytest.mark.hazard(31)
def test_delivered_rows_are_committed_automatically_and_can_be_queried(
    hyp: Hyp, process: subprocess.Popen[bytes]
) -> None:
    token = hyp.ok("server", "token", "create", "--label", "team")["token"]
    url = _address(process)
    machines = [enrol(url, token, f"gw-{number}") for number in range(3)]
    for number, machine in enumerate(machines):
        start = 1000 * number
        for after in (0, 20, 40):
            headers = {**machine.says(), "X_Hyp_Seq_Range": f"{after}-{after + 20}"}
            for _ in range(2):
                body = machine.rows(20, start=start + after)
                assert machine.send(f"{number}/{after}", body, **headers).status == 202
    eventually(lambda: reader.summarize_spool(Home(hyp.home), DATASET).segments == 0)
    _stop(process)

    assert hyp.query(BY_GATEWAY) == [{"gateway_id": f"gw-{number}", "n": 60, "parts": 60} for number in range(3)]
    assert hyp.ok("verify", "--deep")["ok"] is True
    known = hyp.ok("server", "gateways")["gateways"]
    assert [each["gateway_id"] for each in known] == ["gw-0", "gw-1", "gw-2"]


def test_no_machine_hides_the_rows_of_another(hyp: Hyp) -> None:
    """For example two copies of one home: the parts have the same ids, but each machine's rows are separate."""
    token = hyp.ok("server", "token", "create")["token"]
    with hyp.start(*RECEIVE_ONLY) as running:
        url = _address(running)
        for name in ("gw-1", "gw-2"):
            machine = enrol(url, token, name)
            for id in ("one", "two"):
                assert machine.send(id, machine.rows(10)).status == 202
        _stop(running)
    hyp.ingest(rows(10))
    (flushed,) = [each for each in hyp.ok("flush")["datasets"] if each["segments"]]

    assert (flushed["dataset"], flushed["rows_written"], flushed["rows_duplicate"]) == (DATASET, 30, 20)
    assert hyp.ok("verify", "--deep")["ok"] is True
    (hyp.home / "lake" / "keys.db").unlink()
    hyp.ingest(rows(10))
    assert hyp.ok("flush")["datasets"][0]["rows_written"] == 0
    assert [found["n"] for found in hyp.query(BY_GATEWAY)] == [10, 10, 10]


@pytest.mark.hazard(33)
@pytest.mark.hazard(94)
def test_a_server_that_is_killed_repeatedly_has_every_row_once_in_its_lake(hyp: Hyp) -> None:
    token = hyp.ok("server", "token", "create")["token"]
    left = deque(range(20))
    for point in ("register.before-commit:3", "register.after-commit:2", "move.after-rename:2", "answer.after-send:2"):
        with hyp.start(*RECEIVE_ONLY, HYP_CRASH_AT=f"server.{point}") as running:
            _deliver(enrol(_address(running), token, "gw-1"), left)
            assert running.wait(PATIENCE) == -signal.SIGKILL
        hyp.ok("flush")
    with hyp.start(*RECEIVE_ONLY) as running:
        _deliver(enrol(_address(running), token, "gw-1"), left)
        _stop(running)
    assert not left
    hyp.ok("flush")

    found = hyp.query(f"SELECT message_id FROM {DATASET}")
    assert Counter(row["message_id"] for row in found) == Counter(f"message-{number}" for number in range(100))
    assert hyp.ok("verify", "--deep")["ok"] is True


def _deliver(machine: Gateway, left: deque[int]) -> None:
    """Send each batch until it is acknowledged or the server is gone."""
    with suppress(OSError):
        while left:
            assert machine.send(f"b-{left[0]}", machine.rows(5, start=5 * left[0])).status == 202
            left.popleft()
