"""A soak test with an oracle: producers, a sender and a server are killed and restarted repeatedly.

At the end, every acknowledged row is at the server (conservation), once and unchanged (integrity), and the next export
finds everything delivered (liveness). `HYP_SOAK` is the factor by which it runs longer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from hypaware import faults
from hypaware.export import round as _declares_export  # noqa: F401
from hypaware.export.sinks.forward import credentials as _declares_forward  # noqa: F401
from hypaware.home import Home
from hypaware.lake import flush as _declares_flush  # noqa: F401
from hypaware.server import run as _declares_server  # noqa: F401
from hypaware.spool import writer as _declares_spool  # noqa: F401
from tests.support import light_home
from tests.support.command import Hyp, ndjson
from tests.support.delivery_site import (
    Receiver,
    Sender,
    as_stored,
    drawn,
    ended,
    gateway_of,
    lake_rows,
    number_of,
    wait_for_batches,
)
from tests.support.processes import eventually
from tests.support.receiver import stored
from tests.support.rows import DATASET

SOAK = int(os.environ.get("HYP_SOAK", "1"))
KILLS = 8 * SOAK if SOAK > 1 else 6
ROWS = 120
# A soak uses new random numbers; `make test` repeats the same ones.
SEED = 20261117 if SOAK == 1 else random.SystemRandom().randrange(2**32)
# Seconds, for exports that must succeed.
_PATIENT = 10


def points(*beginnings: str) -> list[str]:
    found = [point.name for point in faults.declared_points() if point.name.startswith(beginnings)]
    assert found, beginnings
    return found


OF_PRODUCERS = points("spool.create", "spool.append")
OF_FIRST_EXPORTS = points("export.token", "export.secret")
OF_EXPORTS = points("export.plan", "export.ship", "export.ack", "export.finish", "state.commit", "state.mirror")
OF_SERVERS = points("server.store", "server.register", "server.move", "server.answer")
OF_STARTING_SERVERS = points("server.recover")
OF_FLUSHES = points("lake.reserve", "lake.commit", "iceberg.fsync", "lake.record", "lake.remove")


class Soak:
    def __init__(self, sender: Sender, receiver: Receiver, chance: random.Random) -> None:
        self.sender = sender
        self.receiver = receiver
        self.chance = chance
        self.kills: Counter[str] = Counter()
        self.acknowledged: set[int] = set()
        self.attempted: set[int] = set()

    def run(self) -> None:
        for turn in range(1, 100 * KILLS):
            self.produce()
            if self.chance.random() < 0.5:
                self.sender.inline.ok("flush")
            # Until an export succeeds, or new rows join those that the last one left.
            for disturbance in self._disturbances(turn):
                code = disturbance()
                self._mend_server()
                if code == 0:
                    break
            if turn % 5 == 0:
                self.flush_server()
            if self.kills.total() >= KILLS:
                return

    def produce(self) -> None:
        """Run two producers, one of which may be killed: its unacknowledged rows may or may not exist."""
        first = len(self.attempted)
        crash = {"HYP_CRASH_AT": self.chance.choice(OF_PRODUCERS)} if self.chance.random() < 0.3 else {}
        for numbers, extra in ((range(first, first + ROWS), {}), (range(first + ROWS, first + 2 * ROWS), crash)):
            made = self.sender.hyp.run("ingest", DATASET, "-", stdin=ndjson(list(map(drawn, numbers))), **extra)
            self.attempted |= set(numbers)
            if made.code == 0:
                self.acknowledged |= set(numbers)
            else:
                assert made.code == -signal.SIGKILL, made.err
                self.kills["producer"] += 1

    def flush_server(self) -> None:
        crash = {"HYP_CRASH_AT": self.chance.choice(OF_FLUSHES)} if self.chance.random() < 0.5 else {}
        flushed = Hyp(self.receiver.hyp.home, inline=True).run("flush", "--json", **crash)
        if flushed.code == -signal.SIGKILL:
            self.kills["flush"] += 1
        else:
            check_flushed(flushed.json)

    # One disturbed export each; 0 if it succeeded anyway. The next export delivers the rest.

    def _disturbances(self, turn: int) -> Iterator[Callable[[], int]]:
        if turn == 1:
            yield self.export_killed_at_its_first_point
        killing = [
            self.export_killed_at_a_point,
            self.export_killed_at_any_time,
            self.engine_killed_at_any_time,
            self.server_killed_at_a_point,
            self.server_killed_at_any_time,
        ]
        yield from self.chance.sample(killing, len(killing))
        yield self.chance.choice([self.one_of_two_exports_killed, self.export_cancelled, self.server_restarted])

    def export_killed_at_its_first_point(self) -> int:
        return self._export_ended(self.sender.export(crash_at=self.chance.choice(OF_FIRST_EXPORTS)))

    def export_killed_at_a_point(self) -> int:
        point = f"{self.chance.choice(OF_EXPORTS)}:{self.chance.randint(1, 4)}"
        return self._export_ended(self.sender.export(crash_at=point))

    def export_killed_at_any_time(self) -> int:
        wanted = self._some_batches()
        export = self.sender.export()
        if wait_for_batches(self.receiver, wanted, export):
            export.kill()
        return self._export_ended(export)

    def engine_killed_at_any_time(self) -> int:
        wanted = self._some_batches()
        export = self.sender.export(inline=False)
        wait_for_batches(self.receiver, wanted, export)
        self.kills["engine"] += self.sender.kill_engine()
        return ended(export)

    def one_of_two_exports_killed(self) -> int:
        wanted = self._some_batches()
        doomed, other = self.sender.export(), self.sender.export(max_wait=_PATIENT)
        if wait_for_batches(self.receiver, wanted, doomed):
            doomed.kill()
        self._export_ended(doomed)
        return self._export_ended(other)

    def export_cancelled(self) -> int:
        """Cancel the export, as Ctrl-C does."""
        wanted = self._some_batches()
        export = self.sender.export()
        if wait_for_batches(self.receiver, wanted, export):
            export.send_signal(signal.SIGINT)
        return self._export_ended(export)

    def server_killed_at_a_point(self) -> int:
        self.receiver.stop()
        self.receiver.start(f"{self.chance.choice(OF_SERVERS)}:{self.chance.randint(1, 5)}")
        comes_back = self.chance.random() < 0.3
        export = self.sender.export(max_wait=_PATIENT if comes_back else 0)
        while export.poll() is None and not self.receiver.is_dead:
            time.sleep(0.002)
        # A later export must not die at a point that this one did not reach.
        self.receiver.kill()
        return self._export_outlives_it(export, comes_back)

    def server_killed_at_any_time(self) -> int:
        wanted, comes_back = self._some_batches(), self.chance.random() < 0.3
        export = self.sender.export(max_wait=_PATIENT if comes_back else 0)
        if wait_for_batches(self.receiver, wanted, export):
            self.receiver.kill()
        return self._export_outlives_it(export, comes_back)

    def server_restarted(self) -> int:
        """Restart the server as an operator does: it finishes open requests and refuses new ones."""
        wanted = self._some_batches()
        export = self.sender.export()
        if wait_for_batches(self.receiver, wanted, export):
            self.receiver.stop()
            self.receiver.start()
        return ended(export)

    def _some_batches(self) -> int:
        return self.receiver.batches + self.chance.randint(1, 6)

    def _export_ended(self, export: subprocess.Popen[bytes]) -> int:
        code = ended(export)
        self.kills["export"] += code == -signal.SIGKILL
        return code

    def _export_outlives_it(self, export: subprocess.Popen[bytes], comes_back: bool) -> int:
        """Restart the server while the export waits for it, or afterwards."""
        if comes_back:
            self._mend_server()
        return ended(export)

    def _mend_server(self) -> None:
        if self.receiver.is_dead:
            self.kills["server"] += 1
            self.receiver.start(self.chance.choice([None, *OF_STARTING_SERVERS]))
            if self.receiver.is_dead:
                self._mend_server()


def check_flushed(report: dict[str, Any]) -> None:
    """Check that the server's flush met no duplicates: its lake would drop and thereby hide them."""
    for dataset in report["datasets"]:
        assert (dataset["rows_duplicate"], dataset["rows_rejected"]) == (0, 0), report


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    found = Sender(tmp_path)
    yield found
    found.hyp.run("engine", "stop")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    found = Receiver(tmp_path)
    yield found
    found.kill()
    found.hyp.run("engine", "stop")


@pytest.mark.hazard(22)
@pytest.mark.hazard(26)
@pytest.mark.hazard(31)
@pytest.mark.hazard(33)
@pytest.mark.hazard(94)
def test_rows_arrive_once_although_both_sides_are_killed_repeatedly(
    sender: Sender, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.start()
    sender.point_at(receiver.url, receiver.new_token(tmp_path / "token"))
    soak = Soak(sender, receiver, random.Random(SEED))
    soak.run()
    told = {"seed": SEED, **soak.kills}
    assert soak.kills.total() >= KILLS, told

    last = sender.inline.ok("export")
    assert [sink["status"] for sink in last["sinks"]] == ["ok"], told
    received = receiver.bytes_received
    again = sender.inline.ok("export")
    assert {(stream["rows"], stream["bytes"]) for stream in again["sinks"][0]["streams"]} == {(0, 0)}
    assert receiver.bytes_received == received
    for stream in sender.hyp.ok("export", "status")["streams"]:
        assert (stream["lag_rows"], stream["pending"], stream["dead_letters"]) == (0, None, 0)
        assert stream["watermark"] == stream["high_water"]

    receiver.stop()
    check_flushed(receiver.hyp.ok("flush"))
    gateway_id = gateway_of(sender.hyp)
    committed = Counter(number_of(row) for row in lake_rows(Home(sender.hyp.home)))
    arrived: Counter[int] = Counter()
    for row in lake_rows(Home(receiver.hyp.home)):
        number = number_of(row)
        arrived[number] += 1
        assert row == as_stored(number, gateway_id)
    assert set(arrived.values()) == {1}, told
    assert arrived == committed
    assert soak.acknowledged <= arrived.keys() <= soak.attempted
    assert receiver.hyp.ok("verify")["ok"]


def test_rows_are_delivered_over_tls_to_a_killed_server_trusted_only_through_its_ca(
    sender: Sender, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    trusting = {"SSL_CERT_FILE": str(tmp_path / "authority.pem")}
    pem = str(tmp_path / "server.pem")
    receiver = Receiver(tmp_path, "--tls-cert", pem, "--tls-key", pem)
    receiver.start("server.register.after-commit:2")
    try:
        sender.point_at(receiver.url, receiver.new_token(tmp_path / "token"))
        light_home.append(Home(sender.hyp.home), [drawn(number) for number in range(30)])
        light_home.flush(Home(sender.hyp.home))

        distrusted = sender.inline.run("export", "--json")
        assert distrusted.code == 1
        assert distrusted.json["sinks"][0]["error"]["kind"] == "certificate"
        assert receiver.batches == 0

        assert sender.inline.run("export", "--max-wait", "0", **trusting).code == 1
        eventually(lambda: receiver.is_dead)
        receiver.start()
        assert sender.inline.ok("export", **trusting)["sinks"][0]["status"] == "ok"
        receiver.stop()
    finally:
        receiver.kill()
    assert Counter(stored(Home(receiver.hyp.home))) == Counter(f"message-{number}" for number in range(30))
