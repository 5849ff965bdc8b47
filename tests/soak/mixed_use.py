"""A machine that records, keeps and delivers rows for some simulated hours, while something goes wrong every hour.

Its rows go to a server on another machine. Each hour a producer and one more command run, and one disturbance meets
them: a kill, a suspended process, a harmed network, a full disk or a clock that is set. At the end all is mended, and
every row that was acknowledged is at the server, once and unchanged. The seed decides what happens in which hour;
at which instruction it happens depends on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from hypaware.home import Home
from hypaware.home.locks import is_locked, lock_holder
from tests.soak.clock import Clock, shifted_clock
from tests.soak.link import FAULTS, Link, harmed, linked
from tests.support.command import Hyp, ndjson
from tests.support.delivery_site import Receiver, Sender, as_stored, drawn, gateway_of, lake_rows, number_of
from tests.support.processes import PATIENCE, wait_until_gone
from tests.support.rows import DATASET
from tests.support.small_disk import SmallDisk, mounted

_ROWS = 40
_DISK_SIZE = "192m"
_LONGEST_JUMP = 3 * 86400
_ATTEMPTS = 20
_DISTURBED_PRODUCERS = 0.3
# What an hour may bring besides new rows, and how often.
_COMMANDS = {
    ("export", "--json", "--max-wait", "20s"): 5,
    ("flush", "--json"): 3,
    ("maintain", "--force", "--json"): 1,
    ("query", "sql", f"SELECT count(*) FROM {DATASET}"): 1,
    ("sessions", "--json"): 1,
}
# A full disk, a lost connection or a killed engine are errors that a command reports.
_OUTCOMES = (0, 1, 3, -signal.SIGKILL)


class Site:
    """Both machines, and what was sent."""

    def __init__(self, folder: Path, seed: int, disk: SmallDisk, link: Link, clock: Clock) -> None:
        self.chance = random.Random(seed)
        self.disk, self.link, self.clock = disk, link, clock
        self.receiver = Receiver(folder, host=link.there, prefix=link.prefix, environment=clock.environment)
        self.sender = Sender(disk.root)
        self.counts: Counter[str] = Counter()
        self.acknowledged: set[int] = set()
        self.attempted: set[int] = set()
        self.told: list[str] = []

    def begin(self, folder: Path) -> None:
        """Set up both machines, and start the engine of the first one."""
        self.receiver.start()
        self.sender.point_at(self.receiver.url, self.receiver.new_token(folder / "token"))
        self._produce(_calm)
        self.sender.hyp.ok("flush", **self.clock.environment)

    def run(self, hours: int, kinds: tuple[str, ...]) -> None:
        for hour in range(hours):
            kind = self.chance.choice(kinds)
            self.told.append(f"hour {hour}: {kind}")
            self.clock.advance(3600)
            with DISTURBANCES[kind](self) as disturb:
                self._produce(disturb if self.chance.random() < _DISTURBED_PRODUCERS else _calm)
                chosen = self.chance.choices(list(_COMMANDS), list(_COMMANDS.values()))[0]
                self._command(chosen, disturb)
            self.counts[kind] += 1
            if self.receiver.is_dead:
                self.receiver.start()

    def _produce(self, disturb: Disturb) -> None:
        first = len(self.attempted)
        numbers = range(first, first + _ROWS)
        self.attempted |= set(numbers)
        started = self._start("ingest", DATASET, "-", "--json")
        out = self._finish(started, disturb, ndjson(list(map(drawn, numbers))).encode())
        if started.returncode == 0 and json.loads(out)["accepted"] == _ROWS:
            self.acknowledged |= set(numbers)

    def _command(self, words: tuple[str, ...], disturb: Disturb) -> None:
        self.told[-1] += f", {words[0]}"
        self._finish(self._start(*words), disturb)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return self.sender.hyp.start(*words, **self.clock.environment)

    def _finish(self, started: subprocess.Popen[bytes], disturb: Disturb, given: bytes = b"") -> bytes:
        with contextlib.suppress(psutil.NoSuchProcess):
            disturb(psutil.Process(started.pid))
        out, err = started.communicate(given, timeout=PATIENCE)
        assert started.returncode in _OUTCOMES, f"ended with {started.returncode}: {err.decode()}"
        assert b"Traceback" not in err, err.decode()
        return out

    def pick(self, command: psutil.Process) -> tuple[str, int]:
        """Return a process of those that run, by name and pid."""
        found = {"command": command.pid, "server": self.receiver.pid}
        lock = Home(self.sender.hyp.home).engine_lock
        if is_locked(lock) and (engine := lock_holder(lock)):
            found["engine"] = engine
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(engine).children():
                    found["JVM" if child.name() == "java" else "worker"] = child.pid
        return self.chance.choice(sorted(found.items()))

    def check(self) -> None:
        """Deliver the rest, and compare what was acknowledged, what is here, and what has arrived."""
        environment = self.clock.environment
        for _ in range(_ATTEMPTS):
            if self.sender.hyp.run("export", "--json", **environment).code == 0:
                break
        else:
            raise AssertionError(self.sender.hyp.run("export", **environment).out)
        self.receiver.stop()
        for dataset in self.receiver.hyp.ok("flush", **environment)["datasets"]:
            assert (dataset["rows_duplicate"], dataset["rows_rejected"]) == (0, 0), dataset
        gateway_id = gateway_of(self.sender.hyp)
        committed = Counter(number_of(row) for row in lake_rows(Home(self.sender.hyp.home)))
        arrived: Counter[int] = Counter()
        for row in lake_rows(Home(self.receiver.hyp.home)):
            number = number_of(row)
            arrived[number] += 1
            assert row == as_stored(number, gateway_id)
        assert arrived == committed, (arrived - committed, committed - arrived)
        assert max(arrived.values()) == 1, "rows twice"
        assert self.acknowledged <= arrived.keys() <= self.attempted, sorted(self.acknowledged - arrived.keys())
        for side in (self.sender.hyp, self.receiver.hyp):
            assert side.ok("verify", "--deep", **environment)["ok"]

    def end(self) -> None:
        """Stop everything that runs."""
        self.receiver.kill()
        for side in (self.sender.hyp, self.receiver.hyp):
            _stop_engine(side)


def _stop_engine(side: Hyp) -> None:
    lock = Home(side.home).engine_lock
    if is_locked(lock) and (pid := lock_holder(lock)):
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children(recursive=True)
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


Disturb = Callable[[psutil.Process], None]


def _calm(_command: psutil.Process) -> None:
    pass


def _pause(site: Site, longest: float) -> None:
    """Let the processes come to some instruction. This is no wait for anything."""
    time.sleep(site.chance.uniform(0, longest))


@contextmanager
def _killed(site: Site) -> Iterator[Disturb]:
    def disturb(command: psutil.Process) -> None:
        _pause(site, 4.0)
        name, pid = site.pick(command)
        site.told[-1] += f", kill {name}"
        if name == "server":
            site.receiver.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        site.counts[f"killed: {name}"] += 1

    yield disturb


@contextmanager
def _suspended(site: Site) -> Iterator[Disturb]:
    def disturb(command: psutil.Process) -> None:
        _pause(site, 3.0)
        name, pid = site.pick(command)
        site.told[-1] += f", suspend {name}"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            site.counts[f"suspended: {name}"] += 1
            try:
                _pause(site, 12.0)
            finally:
                os.kill(pid, signal.SIGCONT)

    yield disturb


@contextmanager
def _network(site: Site) -> Iterator[Disturb]:
    fault = site.chance.choice(sorted(FAULTS))
    site.told[-1] += f", {fault}"

    def disturb(_command: psutil.Process) -> None:
        _pause(site, 3.0)
        with harmed(site.link, fault):
            _pause(site, 15.0)
        site.counts[f"network: {fault}"] += 1

    yield disturb


@contextmanager
def _full_disk(site: Site) -> Iterator[Disturb]:
    """Fill the disk of the sender while its commands run."""

    def disturb(_command: psutil.Process) -> None:
        _pause(site, 3.0)
        site.disk.fill(site.chance.choice((0, 4096, 1 << 16, 1 << 20)))
        try:
            _pause(site, 8.0)
        finally:
            site.disk.make_room()

    yield disturb


@contextmanager
def _clock(site: Site) -> Iterator[Disturb]:
    def disturb(_command: psutil.Process) -> None:
        _pause(site, 2.0)
        jump = site.chance.randint(-_LONGEST_JUMP, _LONGEST_JUMP)
        site.told[-1] += f", clock {jump:+} s"
        site.clock.advance(jump)

    yield disturb


DISTURBANCES: dict[str, Callable[[Site], contextlib.AbstractContextManager[Disturb]]] = {
    "kills": _killed,
    "suspended": _suspended,
    "network": _network,
    "full disk": _full_disk,
    "clock": _clock,
}


def run(folder: Path, seed: int, kinds: tuple[str, ...], hours: int) -> Counter[str]:
    """Run some hours of use with these kinds of disturbances, and return what happened how often."""
    with ExitStack() as stack:
        disk = stack.enter_context(mounted(folder / "disk", _DISK_SIZE))
        link = stack.enter_context(linked())
        clock = stack.enter_context(shifted_clock(folder / "clock"))
        site = Site(folder, seed, disk, link, clock)
        stack.callback(site.end)
        try:
            site.begin(folder)
            site.run(hours, kinds)
            site.check()
        except BaseException as error:
            error.add_note("; ".join(site.told))
            raise
        return site.counts
