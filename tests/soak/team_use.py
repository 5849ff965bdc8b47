"""A team's lake whose processes are killed, one after another, while machines deliver rows to it and record in it.

PostgreSQL, an S3 server and a Spark cluster with two workers; two receivers behind one address; a flusher, which runs
its jobs on the cluster; and a machine with a daemon, which records into the same lake. The last two take turns to
commit what is recorded and received. Killed are all of them except for Spark's master and its workers: receivers, the
flusher, engines and their JVMs, executors and their Python workers, the daemon, PostgreSQL, and the S3 server. Each is
started again, as a supervisor would. At the end, every row that was acknowledged is in the lake, once. The seed decides
what is killed when; at which instruction that happens depends on the machine.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from hypaware.config.shared_lake import SharedLake, find_shared_lake
from hypaware.home import Home
from hypaware.home.locks import is_locked, lock_holder
from hypaware.iceberg import catalog
from hypaware.spool.received import open_received
from hypaware.state.home_opener import open_home
from tests.support.balancer import balanced
from tests.support.command import HYP, Hyp, ndjson
from tests.support.delivery_site import Receiver
from tests.support.light_lake import read_lake
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually, wait_until_gone
from tests.support.receiver import Gateway, enrol
from tests.support.rows import DATASET, rows
from tests.support.shared_lake import SharedLakeServers, shared_lake_servers
from tests.support.spark_cluster import cluster

KILLS = 50
_ROWS = 20
_LONGEST_PAUSE = 8.0
_LONGEST_OUTAGE = 3.0
_BETWEEN_BATCHES = 1.0
_POLL = 0.3
_ATTEMPTS = 20
# How often a kill is followed by a wait for the next commit. Otherwise the next kill may meet the recovery.
_WAITS = 0.5
_OFTEN = '[flush]\ninterval = "2s"\ncold_interval = "2s"\n'
_BROKEN = (OSError, http.client.HTTPException)
_ORPHAN_AGE = 7200


class Service:
    """A `hyp` process that is started again after it was killed."""

    def __init__(self, hyp: Hyp, *words: str) -> None:
        self.hyp = hyp
        self._words = words
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._lives += 1
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [str(HYP), *self._words],
                env=self.hyp.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def _log(self) -> Path:
        return self.hyp.home.parent / f"{self.hyp.home.name}-{self._lives}.log"

    def check(self) -> None:
        """It ends by a kill only: it outlives the database, the bucket and its engine. To start, it needs them."""
        assert self._process
        code = self._process.poll()
        said = self._log.read_text()
        assert code is None or "listens on" not in said, f"{self._words} ended with {code}: {said[-5000:]}"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def stop(self) -> None:
        assert self._process
        self._process.terminate()
        # A process that has just been started may not handle the signal yet.
        assert self._process.wait(PATIENCE) in (0, 1, -signal.SIGTERM), self._log.read_text()[-5000:]


class Machine:
    """A machine that sends batches to the receivers, each again under its id until it is acknowledged."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.acknowledged = 0
        self.repeated = 0
        self.failed = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._done.set()
        self._thread.join()
        assert not self.failed, self.failed

    def expected(self) -> Counter[tuple[str, str]]:
        numbers = range(1, self.acknowledged + 1)
        return Counter((self.gateway.gateway_id, f"message-{number}") for number in numbers)

    def _run(self) -> None:
        # A batch that was begun is acknowledged before the end: its sender would repeat it for days.
        while not self._done.is_set() and not self.failed:
            self._deliver(self.acknowledged, self.acknowledged + _ROWS)
            self._done.wait(_BETWEEN_BATCHES)

    def _deliver(self, after: int, last: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(*_BROKEN):
                answer = self.gateway.deliver(after, last)
                if answer.status == 202:
                    self.acknowledged = last
                    return
                if answer.status != 503:
                    self.failed = f"{after}-{last}: {answer}"
                    return
            self.repeated += 1
            time.sleep(_BETWEEN_BATCHES / 4)
        self.failed = f"{after}-{last} was never acknowledged"


class TeamSite:
    """All processes of the team, and what they have acknowledged."""

    def __init__(self, folder: Path, seed: int, servers: SharedLakeServers, running: ExitStack) -> None:
        self.chance = random.Random(seed)
        self.servers = servers
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []
        self.recorded = 0
        secret = folder / "cluster-secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        master = running.enter_context(cluster(folder / "cluster", workers=2, cores=1, secret=secret.read_text()))
        self.workers = [each for each in psutil.Process().children() if "worker.Worker" in " ".join(each.cmdline())]
        listen = ("--listen", "127.0.0.1:0")
        self.flusher = Service(_configured(servers, "flusher"), "server", "run", *listen)
        self.flusher.hyp.ok("config", "set", "engine.master", master)
        self.flusher.hyp.ok("config", "set", "engine.secret_file", str(secret))
        self.daemon = Service(_with_daemon(servers, "desk", running), "daemon", "run")
        for name in ("receiver-1", "receiver-2"):
            servers.machine(name)
        self.receivers = [Receiver(folder, name=name) for name in ("receiver-1", "receiver-2")]
        running.callback(self.end)
        for each in self.receivers:
            each.start()
        url = running.enter_context(balanced([urlsplit(each.url).port or 0 for each in self.receivers]))
        token = self.receivers[0].hyp.ok("server", "token", "create")["token"]
        self._record()
        for service in (self.flusher, self.daemon):
            service.start()
        self.machines = [Machine(enrol(url, token, f"gw-{number}")) for number in (1, 2)]

    def run(self, kills: int) -> None:
        self._wait_for_commit()
        while sum(self.counts.values()) < kills:
            before = self._commits()
            time.sleep(self.chance.uniform(0, _LONGEST_PAUSE))
            found = self._killable()
            name = self.chance.choice(sorted(found))
            self.told.append(name)
            found[name]()
            self.counts[f"killed: {name}"] += 1
            self._record()
            if self.chance.random() < _WAITS:
                self._wait_for_commit(before)

    def _killable(self) -> dict[str, Callable[[], None]]:
        """Return how to kill what runs now, and start it again."""
        receiver = self.chance.choice(self.receivers)
        found: dict[str, Callable[[], None]] = {
            "receiver": lambda: _restart(receiver),
            "flusher": lambda: _restart(self.flusher),
            "daemon": lambda: _restart(self.daemon),
            "PostgreSQL": self._restart_database,
            "S3 server": self._restart_bucket,
        }
        for executor in self._executors():
            found["executor"] = executor.kill
            for child in _children(executor):
                found["Python worker of an executor"] = child.kill
        for hyp in (self.flusher.hyp, self.daemon.hyp):
            lock = Home(hyp.home).engine_lock
            if is_locked(lock) and (pid := lock_holder(lock)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine = psutil.Process(pid)
                    found["engine"] = engine.kill
                    for child in engine.children():
                        if child.name() == "java":
                            found["JVM of an engine"] = child.kill
        return {name: _ignoring_gone(kill) for name, kill in found.items()}

    def _executors(self) -> Iterator[psutil.Process]:
        for worker in self.workers:
            for child in _children(worker):
                if child.name() == "java":
                    yield child

    def _restart_database(self) -> None:
        self.servers.postgres.kill()
        time.sleep(self.chance.uniform(0, _LONGEST_OUTAGE))
        self.servers.postgres.start()

    def _restart_bucket(self) -> None:
        self.servers.s3.kill()
        time.sleep(self.chance.uniform(0, _LONGEST_OUTAGE))
        self.servers.s3.start()

    def _record(self) -> None:
        """Append rows on the machine with the daemon, again until they are acknowledged."""
        more = rows(_ROWS, start=self.recorded)
        eventually(lambda: self._is_recorded(more))
        self.recorded += _ROWS

    def _is_recorded(self, more: list[dict[str, Any]]) -> bool:
        answer = self.daemon.hyp.run("ingest", DATASET, "-", "--json", stdin=ndjson(more))
        assert "Traceback" not in answer.err, answer.err
        return answer.code == 0

    def _commits(self) -> int:
        """Return how many flushes are recorded."""
        with catalog.connect_shared(_shared(self.flusher.hyp)) as connection:
            found = connection.execute("SELECT count(*) FROM hypaware.flushes WHERE status = 'committed'").fetchone()
        assert found is not None
        return int(found[0])

    def _wait_for_commit(self, before: int = 0) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._commits() <= before:
            assert time.monotonic() < deadline, "nothing is committed any more"
            time.sleep(_POLL)

    def check(self) -> None:
        """Commit the rest, and compare what was acknowledged with what an independent reader finds."""
        for machine in self.machines:
            machine.finish()
            self.counts["batches that were sent again"] += machine.repeated
        for service in (self.flusher, self.daemon):
            service.check()
            service.stop()
        for hyp in (self.daemon.hyp, self.flusher.hyp):
            hyp.run("engine", "stop")
            for _ in range(_ATTEMPTS):
                if (answer := hyp.run("flush")).code == 0:
                    break
            else:
                raise AssertionError(f"{answer}")
            hyp.run("engine", "stop")
        assert self.daemon.hyp.ok("verify", "--deep")["ok"] is True
        home = Home(self.flusher.hyp.home)
        stored = Counter((row["gateway_id"], row["message_id"]) for row in read_lake(home, DATASET))
        assert max(stored.values()) == 1, f"rows twice: {[key for key, count in stored.items() if count > 1][:20]}"
        expected = sum((machine.expected() for machine in self.machines), Counter[tuple[str, str]]())
        gateways = {machine.gateway.gateway_id for machine in self.machines}
        delivered = Counter({key: count for key, count in stored.items() if key[0] in gateways})
        assert delivered == expected, (sorted(expected - delivered)[:20], sorted(delivered - expected)[:20])
        recorded = {message for gateway, message in stored if gateway not in gateways}
        assert recorded == {f"message-{number}" for number in range(self.recorded)}
        with closing(open_home(home).store) as store:
            received = open_received(home, store)
            assert received is not None
            assert received.list_segments(DATASET) == []
            received.find_missing(DATASET, now=time.time() + _ORPHAN_AGE)
            assert not list(received.folder(DATASET).list_objects())
        self.counts["rows"] += len(stored)

    def end(self) -> None:
        """Stop everything that runs."""
        for machine in getattr(self, "machines", ()):
            machine.failed = machine.failed or "ended"
        for service in (self.flusher, self.daemon):
            service.kill()
            _kill_engine(service.hyp)
        for receiver in self.receivers:
            with contextlib.suppress(AssertionError):
                receiver.kill()


def _shared(hyp: Hyp) -> SharedLake:
    found = find_shared_lake(Home(hyp.home))
    assert found is not None
    return found


def _configured(servers: SharedLakeServers, name: str) -> Hyp:
    hyp = servers.machine(name)
    with (hyp.home / "config.toml").open("a") as config:
        config.write(_OFTEN)
    return hyp


def _with_daemon(servers: SharedLakeServers, name: str, running: ExitStack) -> Hyp:
    hyp = _configured(servers, name)
    port = running.enter_context(held_port())
    with (hyp.home / "config.toml").open("a") as config:
        config.write(f'[page]\nenabled = false\n[gateway]\nlisten = "127.0.0.1:{port}"\n')
    return hyp


def _restart(service: Service | Receiver) -> None:
    if isinstance(service, Service):
        service.check()
    service.kill()
    service.start()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _ignoring_gone(kill: Callable[[], None]) -> Callable[[], None]:
    def killed() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            kill()

    return killed


def _kill_engine(hyp: Hyp) -> None:
    lock = Home(hyp.home).engine_lock
    if is_locked(lock) and (pid := lock_holder(lock)):
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children(recursive=True)
            for each in (psutil.Process(pid), *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            wait_until_gone(pid)


def run(folder: Path, seed: int, kills: int = KILLS) -> Counter[str]:
    """Kill so many processes of a team, and return what happened how often."""
    with ExitStack() as running:
        servers = running.enter_context(shared_lake_servers(folder))
        site = TeamSite(folder, seed, servers, running)
        try:
            site.run(kills)
            site.check()
        except BaseException as error:
            error.add_note("killed: " + "; ".join(site.told))
            raise
        finally:
            catalog._idle.connection = None
        return site.counts
