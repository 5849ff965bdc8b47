"""Several servers of one shared lake: any of them may die, and each batch is accepted and committed once.

Real PostgreSQL, a real S3 server, real `hyp server run` processes that are killed, and real flushes.
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.home import Home
from hypaware.server.batch_storage import ObjectStorage
from hypaware.spool import segments
from hypaware.spool.received import ReceivedObjects, open_received
from hypaware.state.home_opener import open_home
from tests.support import light_home
from tests.support.balancer import balanced
from tests.support.command import Hyp
from tests.support.delivery_site import Receiver, Sender, drawn, ended, gateway_of
from tests.support.processes import eventually, run, was_killed
from tests.support.receiver import Gateway, enrol, messages, served
from tests.support.rows import DATASET, MESSAGES
from tests.support.s3_server import S3Server
from tests.support.shared_lake import SharedLakeServers, shared_lake_servers

POINTS = (
    "server.put.before-create",
    "server.put.after-create",
    "server.register.before-commit",
    "server.register.after-commit",
    "server.answer.after-send",
)
# Each kill costs a start of Spark.
FLUSH_POINTS = (
    "lake.reserve.after-commit",
    "lake.build.after-write",
    "lake.commit.after-commit",
    "lake.record.after-commit",
    "lake.remove.after-unlink",
)
KILLS = FLUSH_POINTS if "HYP_SOAK" in os.environ else ("lake.commit.after-commit", "lake.record.after-commit")
RESTARTS = 5 if "HYP_SOAK" in os.environ else 1
BROKEN = (OSError, http.client.HTTPException)
DROP_ORPHANS = """
import sys, time
from hypaware.home import Home
from hypaware.spool.received import open_received
from hypaware.state.home_opener import open_home

home = Home.from_environment()
open_received(home, open_home(home).store).find_missing(sys.argv[1], now=time.time() + 7200)
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLakeServers]:
    """Return servers of this file's own, because its tests stop them."""
    with shared_lake_servers(tmp_path_factory.mktemp("shared")) as started:
        yield started


@pytest.fixture(scope="module")
def other(servers: SharedLakeServers) -> Iterator[Receiver]:
    """Return a receiver that is always there. The first one of the lake was killed when it had made the keys."""
    servers.machine("other")
    found = Receiver(servers.folder, name="other")
    found.start("server.keep.after-write")
    assert found.is_dead
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def token(other: Receiver) -> str:
    made: str = other.hyp.ok("server", "token", "create", "--label", "team")["token"]
    return made


@contextmanager
def opened(servers: SharedLakeServers) -> Iterator[ReceivedObjects]:
    home = Home(servers.machine("observer").home)
    with closing(open_home(home).store) as store:
        received = open_received(home, store)
        assert received is not None
        yield received


def objects(received: ReceivedObjects) -> set[Path]:
    return {path for path, _ in received.folder(DATASET).list_objects()}


def waiting(servers: SharedLakeServers, gateway_id: str) -> Counter[str]:
    """Return the message ids of a gateway's received rows that are not in the lake, read as a flush does."""
    found: Counter[str] = Counter()
    with opened(servers) as received:
        for segment in received.list_segments(DATASET):
            for ordinal, line in enumerate(segment.path.read_bytes().splitlines(keepends=True)):
                row = segments.decode_line(MESSAGES, line, ordinal)
                found.update([row["message_id"]] if row["gateway_id"] == gateway_id else [])
    return found


def committed(servers: SharedLakeServers) -> dict[str, Counter[str]]:
    """Return the message ids in the lake by gateway, with an independent reader."""
    settings = {
        "s3.endpoint": servers.s3.endpoint,
        "s3.access-key-id": S3Server.access_key,
        "s3.secret-access-key": S3Server.secret_key,
        "s3.region": "us-east-1",
    }
    found: dict[str, Counter[str]] = {}
    with SqlCatalog("hyp", uri=servers.whole_uri, **settings) as catalog:
        columns = ("gateway_id", "message_id")
        for row in catalog.load_table(f"hypaware.{DATASET}").scan(selected_fields=columns).to_arrow().to_pylist():
            found.setdefault(row["gateway_id"], Counter()).update([row["message_id"]])
    return found


def once(numbers: range) -> Counter[str]:
    return Counter(messages(numbers))


@pytest.mark.hazard(31)
@pytest.mark.hazard(33)
@pytest.mark.hazard(94)
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_is_accepted_once_if_its_receiver_is_killed_and_its_sender_repeats_it_at_another(
    servers: SharedLakeServers, other: Receiver, token: str, point: str
) -> None:
    servers.machine("killed")
    killed = Receiver(servers.folder, name="killed")
    killed.start(f"{point}:2")
    try:
        gateway = enrol(other.url, token, f"gw-{point}")
        at_killed = replace(gateway, url=killed.url)
        assert at_killed.deliver(0, 5).status == 202
        # The last point comes after the answer.
        with suppress(*BROKEN):
            at_killed.deliver(5, 25)
        eventually(lambda: killed.is_dead)
    finally:
        killed.kill()
    assert gateway.deliver(5, 25).status == 202
    assert gateway.deliver(5, 25).json["stored"] == 0
    assert gateway.watermark() == {"last": 25, "holes": []}
    assert waiting(servers, gateway.gateway_id) == once(range(1, 26))


@pytest.mark.hazard(95)
def test_a_machine_is_the_same_at_every_receiver_and_with_every_token(
    servers: SharedLakeServers, other: Receiver, token: str
) -> None:
    servers.machine("second")
    second = Receiver(servers.folder, name="second")
    second.start()
    try:
        gateway = enrol(other.url, token, "gw-same")
        at_second = replace(gateway, url=second.url)
        assert gateway.deliver(0, 10).json == {"stored": 10}
        assert at_second.deliver(0, 10).json == {"stored": 0, "duplicate": True}
        again = enrol(second.url, second.hyp.ok("server", "token", "create")["token"], "gw-same")
        assert again.watermark() == {"last": 10, "holes": []}
        assert again.deliver(5, 15, id="another").error == "range_overlap"
        capabilities = [gateway.ask("GET", "/v1/capabilities"), at_second.ask("GET", "/v1/capabilities")]
        assert capabilities[0].json["server_id"] == capabilities[1].json["server_id"]
    finally:
        second.stop()
    assert waiting(servers, "gw-same") == once(range(1, 11))


@pytest.mark.hazard(107)
def test_installations_of_the_original_get_their_own_ids_at_different_receivers(
    servers: SharedLakeServers, other: Receiver, token: str
) -> None:
    before = _gateway_ids(other)
    servers.machine("second")
    second = Receiver(servers.folder, name="second")
    second.start()
    try:
        for url in (other.url, second.url):
            assert Gateway(url).bootstrap(bootstrap_token=token).status == 200
    finally:
        second.stop()
    assert len(_gateway_ids(other) - before) == 2


def _gateway_ids(receiver: Receiver) -> set[str]:
    return {each["gateway_id"] for each in receiver.hyp.ok("server", "gateways")["gateways"]}


def _refused_then_stored_once(servers: SharedLakeServers, gateway: Gateway, mend: Any) -> None:
    refused = gateway.deliver(0, 10)
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert gateway.ask("GET", "/readyz").status == 503
    mend()
    eventually(lambda: gateway.ask("GET", "/readyz").status == 200)
    assert gateway.deliver(0, 10).json == {"stored": 10}
    assert waiting(servers, gateway.gateway_id) == once(range(1, 11))


def test_without_postgresql_a_batch_is_refused_and_stored_once_when_it_is_back(
    servers: SharedLakeServers, other: Receiver, token: str
) -> None:
    gateway = enrol(other.url, token, "gw-postgres")
    servers.postgres.stop()
    try:
        _refused_then_stored_once(servers, gateway, servers.postgres.start)
    finally:
        if servers.postgres.process is None:
            servers.postgres.start()


def test_without_the_bucket_a_batch_is_refused_and_stored_once_when_it_is_back(
    servers: SharedLakeServers, other: Receiver, token: str
) -> None:
    gateway = enrol(other.url, token, "gw-bucket")
    servers.s3.kill()
    started = []

    def mend() -> None:
        servers.s3.start()
        started.append(True)

    try:
        _refused_then_stored_once(servers, gateway, mend)
    finally:
        if not started:
            servers.s3.start()


@pytest.mark.hazard(94)
@pytest.mark.parametrize("point", ["spool.drop.after-commit", "spool.drop.after-delete"])
def test_an_object_that_no_receiver_entered_is_dropped_although_the_flush_is_killed(
    servers: SharedLakeServers, other: Receiver, token: str, point: str
) -> None:
    servers.machine("killed")
    killed = Receiver(servers.folder, name="killed")
    killed.start("server.put.after-create")
    gateway = enrol(other.url, token, f"gw-{point}")
    with pytest.raises(BROKEN):
        replace(gateway, url=killed.url).deliver(0, 5)
    eventually(lambda: killed.is_dead)
    observer = Home(servers.machine("observer").home)
    with opened(servers) as received:
        listed = {segment.path for segment in received.list_segments(DATASET)}
        orphans = objects(received) - listed
        assert orphans
        received.find_missing(DATASET, now=time.time())
        assert objects(received) - listed == orphans, "a receiver may be about to enter it"
        assert was_killed(run(DROP_ORPHANS, observer, DATASET, crash_at=point))
        assert run(DROP_ORPHANS, observer, DATASET).returncode == 0
        assert objects(received) == listed
    assert gateway.deliver(0, 5).json == {"stored": 5}


def test_a_slow_receiver_cannot_enter_an_object_that_was_dropped(
    servers: SharedLakeServers, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(servers.machine("slow").home)
    begin, left = ObjectStorage.begin, [1]

    def drop_first(self: ObjectStorage, paths: Any) -> None:
        if left and left.pop():
            with opened(servers) as received:
                received.find_missing(DATASET, now=time.time() + 7200)
        begin(self, paths)

    monkeypatch.setattr(ObjectStorage, "begin", drop_first)
    with served(home) as server:
        gateway = server.enrolled("gw-slow")
        assert gateway.deliver(0, 5).status == 503
        assert gateway.watermark() == {"last": 0, "holes": []}
        assert gateway.deliver(0, 5).json == {"stored": 5}
    assert waiting(servers, "gw-slow") == once(range(1, 6))


@pytest.mark.hazard(4)
def test_received_batches_are_committed_once_although_each_flush_is_killed(
    servers: SharedLakeServers, other: Receiver, token: str
) -> None:
    """The machine that flushes has never received anything, and has no file of theirs."""
    flusher = Hyp(servers.machine("flusher").home, inline=True)
    gateway = enrol(other.url, token, "gw-flushed")
    for place, point in enumerate(KILLS):
        assert gateway.deliver(20 * place, 20 * (place + 1)).status == 202
        killed = flusher.run("flush", HYP_CRASH_AT=point)
        assert killed.code == -signal.SIGKILL, f"{point} was not reached: {killed.out}{killed.err}"
    assert gateway.deliver(20 * len(KILLS), 20 * len(KILLS) + 3_000).status == 202
    flusher.ok("flush")
    found = committed(servers)
    assert found["gw-flushed"] == once(range(1, 20 * len(KILLS) + 3_001))
    assert {count for ids in found.values() for count in ids.values()} == {1}
    with opened(servers) as received:
        assert received.list_segments(DATASET) == []
        # Other tests may have left objects that were never entered.
        received.find_missing(DATASET, now=time.time() + 7200)
        assert objects(received) == set()
    assert not list((flusher.home / "spool").rglob("*.jsonl"))


class Load:
    """Machines that record rows and deliver them, again and again."""

    def __init__(self, folder: Path, url: str, token_file: Path, machines: int) -> None:
        self.senders = [Sender(folder, f"sender-{number}") for number in range(machines)]
        self.rounds = 0
        self._done = threading.Event()
        self._failed: list[str] = []
        for sender in self.senders:
            sender.point_at(url, token_file)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_until_more_arrives_at(self, receiver: Receiver) -> None:
        before = receiver.bytes_received
        eventually(lambda: receiver.bytes_received > before or self._failed)

    def wait_for_a_round(self) -> None:
        before = self.rounds
        eventually(lambda: self.rounds > before or self._failed)

    def finish(self) -> None:
        self._done.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._deliver(range(60 * self.rounds, 60 * (self.rounds + 1)))
                self.rounds += 1
        except BaseException as error:
            self._failed.append(repr(error))

    def _deliver(self, numbers: range) -> None:
        for sender in self.senders:
            light_home.append(Home(sender.hyp.home), [drawn(number) for number in numbers])
            light_home.flush(Home(sender.hyp.home))
        exports = [sender.export(max_wait=120) for sender in self.senders]
        assert [ended(export) for export in exports] == [0] * len(exports)


def test_a_rolling_restart_under_load_loses_and_doubles_nothing(
    servers: SharedLakeServers, other: Receiver, token: str, tmp_path: Path
) -> None:
    servers.machine("second")
    second = Receiver(servers.folder, name="second")
    second.start()
    receivers = (other, second)
    token_file = tmp_path / "token"
    token_file.write_text(token)
    try:
        with balanced([urlsplit(each.url).port or 0 for each in receivers]) as url:
            load = Load(tmp_path, url, token_file, machines=2)
            try:
                for receiver in receivers * RESTARTS:
                    load.wait_until_more_arrives_at(receiver)
                    receiver.stop()
                    load.wait_for_a_round()
                    receiver.start()
            finally:
                load.finish()
    finally:
        second.stop()
    for sender in load.senders:
        for stream in sender.hyp.ok("export", "status")["streams"]:
            assert (stream["lag_rows"], stream["pending"], stream["dead_letters"]) == (0, None, 0)
        expected = Counter(f"message-{number}" for number in range(60 * load.rounds))
        assert waiting(servers, gateway_of(sender.hyp)) == expected
