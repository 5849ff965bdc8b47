"""The engine process: `python -m hypaware.engine.process --home H`. Started by `launch`, one for each home.

It lives from the home's lock to its own exit. It ends when no job came for `engine.idle_timeout`, when
asked to (stop message, SIGTERM, SIGINT), when its JVM died, and when its home is gone. At its end it stops
listening first, then lets its jobs end, closes Spark, and leaves the lock to the kernel. What it logs goes
to stderr, which `launch` has pointed at `engine/engine.log`. The pid file is for people; nothing depends on
it.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hypaware import telemetry
from hypaware.engine import endpoint, singleton
from hypaware.engine.driver import Driver, spark_opener
from hypaware.engine.jobs import JOBS_MODULE, load_table
from hypaware.engine.launch import GRACE_SECONDS, log_file, pid_file
from hypaware.engine.server import LOG_FORMAT, Server, log
from hypaware.errors import HypError
from hypaware.home import Home

_LOOK_AROUND_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    home = Home(args.home)
    os.umask(0o077)
    if args.lock_fd is None:
        lock = singleton.take(home)
        if lock is None:
            return 0
    else:
        # From whoever started us. Spark's JVM must not inherit it: it may outlive us by a moment.
        lock = args.lock_fd
        os.set_inheritable(lock, False)
    singleton.sign(lock)
    _log_to_stderr()
    telemetry.configure(home)
    stopper = Stopper()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopper.stop(GRACE_SECONDS))
    try:
        run(home, lock, args.jobs, stopper)
    except HypError as error:
        log.error("%s", error.message)
        return 1
    log.info("the engine ends")
    return 0


def run(home: Home, lock: int, jobs_module: str, stopper: Stopper) -> None:
    from hypaware.config.current import CurrentConfig

    config = CurrentConfig(home)
    engine = config().engine
    jobs = load_table(jobs_module)
    driver = Driver(home, spark_opener(home, engine), jobs.on_open)
    server = Server(home, jobs, config, driver, log_file(home), stopper.stop)
    listener = endpoint.listen(home)
    try:
        pid_file(home).write_text(f"{os.getpid()}\n")
        log.info("the engine of %s listens at %s", home.root, home.engine_socket)
        grace = _accept_until_end(listener, server, stopper, engine.idle_timeout, lambda: singleton.holds(home, lock))
    finally:
        listener.close()
        # Another home in the place of ours may have an engine of its own.
        if singleton.holds(home, lock):
            endpoint.remove(home)
            pid_file(home).unlink(missing_ok=True)
    server.drain(grace)
    driver.close()


def _accept_until_end(
    listener: socket.socket,
    server: Server,
    stopper: Stopper,
    idle_timeout: float,
    home_is_ours: Callable[[], bool],
) -> float | None:
    """Returns how long the jobs that still run may go on (None: as long as they take)."""
    while True:
        ready, _, _ = select.select(
            [listener.fileno(), stopper.fileno()], [], [], min(_LOOK_AROUND_SECONDS, idle_timeout)
        )
        if stopper.fileno() in ready:
            log.info("asked to stop")
            return stopper.grace
        if listener.fileno() in ready:
            sock, _ = listener.accept()
            server.attach(sock)
        if not home_is_ours():
            log.warning("the home is gone, or another one took its place")
            return 0.0
        if server.driver.lost:
            log.error("Spark's JVM died")
            return GRACE_SECONDS
        if server.end_if_idle(idle_timeout):
            log.info("no job for %s seconds", idle_timeout)
            return 0.0


class Stopper:
    """Wakes the accepting loop from a signal handler or a connection's thread."""

    def __init__(self) -> None:
        self.grace: float | None = GRACE_SECONDS
        self._wake, self._waker = os.pipe()

    def fileno(self) -> int:
        return self._wake

    def stop(self, grace: float | None) -> None:
        self.grace = grace
        os.write(self._waker, b"\0")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hypaware.engine.process", description="The Spark engine of one home.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--jobs", default=JOBS_MODULE, help="module that knows the jobs")
    parser.add_argument("--lock-fd", type=int, help="the home's lock, taken by the process that starts this one")
    return parser.parse_args(argv)


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=LOG_FORMAT)
    log.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
