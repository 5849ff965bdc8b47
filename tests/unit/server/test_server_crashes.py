"""A real server killed while gateways send: acknowledged batches are stored, and every row is stored once."""

from __future__ import annotations

import http.client
import random
import signal
import subprocess
import threading
from collections import Counter
from itertools import pairwise

import pytest

from hypaware import faults
from hypaware.home import Home
from hypaware.server import auth
from hypaware.server import run as _declares_all_points  # noqa: F401
from tests.support.processes import PATIENCE
from tests.support.receiver import enrol, incoming_files, messages, running, stored

# Those of a put are in tests/spark/test_receivers.py: they are reached only with a shared lake.
POINTS = [
    point.name
    for point in faults.declared_points()
    if point.package == "server" and not point.name.startswith("server.put")
]
WHILE_SENDING = [name for name in POINTS if not name.startswith(("server.recover", "server.keep"))]
RANGES = list(pairwise(range(0, 70, 10)))
BROKEN = (OSError, http.client.HTTPException)


class Sender:
    """A gateway that sends its ranges in order, each until it is acknowledged."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.acknowledged = 0

    @property
    def reported(self) -> list[str]:
        """The acknowledged message ids."""
        return messages(range(self.first, self.first + 10 * self.acknowledged))

    @property
    def first(self) -> int:
        return 1000 * self.number + 1

    def deliver(self, url: str, token: str) -> None:
        """Send until the server dies or every range is acknowledged."""
        try:
            gateway = enrol(url, token, f"gw-{self.number}")
            while self.acknowledged < len(RANGES):
                after, last = RANGES[self.acknowledged]
                answer = gateway.send(
                    f"{after}-{last}",
                    gateway.rows(10, start=self.first + after),
                    **gateway.says(),
                    X_Hyp_Seq_Range=f"{after}-{last}",
                    X_Hyp_Acked_To=str(after),
                )
                assert answer.status == 202, answer
                self.acknowledged += 1
        except BROKEN:
            pass


def deliver_together(senders: list[Sender], url: str, token: str) -> None:
    threads = [threading.Thread(target=sender.deliver, args=(url, token)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def finish(home: Home, senders: list[Sender], token: str) -> None:
    """Check that the next server has every acknowledged row, accepts the rest, and stores nothing twice."""
    with running(home) as (url, process):
        assert url
        assert {name for sender in senders for name in sender.reported} <= set(stored(home))
        assert incoming_files(home) == []
        deliver_together(senders, url, token)
        assert [sender.acknowledged for sender in senders] == [len(RANGES)] * len(senders)
        for sender in senders:
            gateway = enrol(url, token, f"gw-{sender.number}")
            assert gateway.watermark() == {"last": RANGES[-1][1], "holes": []}
            after, last = RANGES[-1]
            assert gateway.send(f"{after}-{last}", b"", **gateway.says()).json["stored"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    everything = [name for sender in senders for name in messages(range(sender.first, sender.first + 60))]
    assert Counter(stored(home)) == Counter(everything)
    assert incoming_files(home) == []


@pytest.mark.hazard(31)
@pytest.mark.hazard(33)
@pytest.mark.hazard(94)
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("point", WHILE_SENDING)
def test_server_killed_at_any_crash_point_keeps_acknowledged_batches_and_stores_nothing_twice(
    home: Home, point: str, times: int
) -> None:
    token, _ = auth.create_token(home)
    senders = [Sender(number) for number in range(3)]
    with running(home, f"{point}:{times}") as (url, process):
        assert url
        deliver_together(senders, url, token)
        assert process.wait(PATIENCE) == -signal.SIGKILL, "the crash point is never reached"
    assert any(sender.acknowledged < len(RANGES) for sender in senders)
    finish(home, senders, token)


@pytest.mark.hazard(94)
@pytest.mark.parametrize(
    ("left_by", "point"),
    [
        ("server.register.after-commit", "server.recover.before-rename"),
        ("server.register.after-commit", "server.recover.after-rename"),
        ("server.register.before-commit", "server.recover.before-unlink"),
    ],
)
def test_server_killed_during_recovery_can_be_restarted(home: Home, left_by: str, point: str) -> None:
    token, _ = auth.create_token(home)
    senders = [Sender(number) for number in range(2)]
    with running(home, f"{left_by}:3") as (url, process):
        assert url
        deliver_together(senders, url, token)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert incoming_files(home)
    with running(home, point) as (url, process):
        assert url is None
        assert process.wait(PATIENCE) == -signal.SIGKILL
    finish(home, senders, token)


def test_server_killed_before_its_first_start_completed_can_be_restarted(home: Home) -> None:
    token, _ = auth.create_token(home)
    for times in (1, 1):
        with running(home, f"server.keep.after-write:{times}") as (url, process):
            assert url is None
            assert process.wait(PATIENCE) == -signal.SIGKILL
    kept = {path: path.read_bytes() for path in (home.root / "server").iterdir()}
    assert len(kept) == 2
    finish(home, [Sender(0)], token)
    assert {path: path.read_bytes() for path in kept} == kept, "the server id and the key stay the same"


def test_every_crash_point_of_the_server_is_tested() -> None:
    tried = {*WHILE_SENDING, "server.keep.after-write"}
    tried |= {"server.recover.before-rename", "server.recover.after-rename", "server.recover.before-unlink"}
    assert tried == set(POINTS)


@pytest.mark.hazard(33)
def test_server_killed_at_a_random_time_keeps_acknowledged_batches(home: Home) -> None:
    token, _ = auth.create_token(home)
    senders, chance = [Sender(number) for number in range(4)], random.Random(5)
    for turn in range(1, 4):
        with running(home) as (url, process):
            assert url
            enough = min(acknowledged(senders) + chance.randrange(1, 6), len(senders) * len(RANGES))
            dying = threading.Thread(target=_kill_when, args=(process, senders, enough))
            dying.start()
            deliver_together(senders, url, token)
            dying.join()
            assert process.wait(PATIENCE) == -signal.SIGKILL, turn
    finish(home, senders, token)


def acknowledged(senders: list[Sender]) -> int:
    return sum(sender.acknowledged for sender in senders)


def _kill_when(process: subprocess.Popen[bytes], senders: list[Sender], enough: int) -> None:
    while acknowledged(senders) < enough:
        pass
    process.kill()
