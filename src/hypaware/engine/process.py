"""The engine process: `python -m hypaware.engine.process --home H`. `launcher` starts one for each home.

It holds the home's lock for its lifetime. It ends after `engine.idle_timeout` without a job, on request (stop message,
SIGTERM, SIGINT), when its JVM has died, and when its home was removed. It then stops listening, waits for its jobs,
closes Spark, and exits, which releases the lock. It logs to stderr, which `launcher` redirects to `engine/engine.log`.
The pid file is informational; nothing depends on it.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hypaware import telemetry
from hypaware.engine.jobs import JOBS_MODULE
from hypaware.engine.lake_owner import LakeOwner, on_open_step, start_spark
from hypaware.engine.launcher import GRACE_SECONDS, engine_log, engine_pid_file, listen_on_socket, remove_socket
from hypaware.engine.server import LOG_FORMAT, JobServer, log
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.home.locks import is_file_at, try_lock, write_pid

_POLL_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hypaware.engine.process", description="Run the Spark engine of a home.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--jobs", default=JOBS_MODULE, help="module that provides the jobs")
    parser.add_argument("--lock-fd", type=int, help="descriptor of the home's lock, inherited from the parent process")
    args = parser.parse_args(argv)
    home = Home(args.home)
    os.umask(0o077)
    if args.lock_fd is None:
        lock = try_lock(home.engine_lock, with_pid=False)
        if lock is None:
            return 0
    else:
        # Inherited from the parent. Spark's JVM must not inherit it, because it may exit slightly later.
        lock = args.lock_fd
        os.set_inheritable(lock, False)
    write_pid(lock)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=LOG_FORMAT)
    log.setLevel(logging.INFO)
    telemetry.configure(home.telemetry)
    stopper = Stopper()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopper.stop(GRACE_SECONDS))
    try:
        serve_jobs(home, lock, args.jobs, stopper)
    except HypError as error:
        log.error("%s", error.message)
        return 1
    log.info("the engine exits")
    return 0


def serve_jobs(home: Home, lock: int, jobs_module: str, stopper: Stopper) -> None:
    from hypaware.config import CurrentConfig

    config = CurrentConfig(home)
    engine = config().engine
    lake_owner = LakeOwner(home, partial(start_spark, home, engine), on_open_step(jobs_module))
    server = JobServer(home, jobs_module, config, lake_owner, engine_log(home), stopper.stop)
    listener = listen_on_socket(home)
    try:
        engine_pid_file(home).write_text(f"{os.getpid()}\n")
        log.info("the engine of %s is listening on %s", home.root, home.engine_socket)
        grace = _accept_until_end(listener, server, stopper, engine.idle_timeout, lock)
    finally:
        listener.close()
        # A new home at the same path may have its own engine.
        if is_file_at(home.engine_lock, lock):
            remove_socket(home)
            engine_pid_file(home).unlink(missing_ok=True)
    server.drain(grace)
    lake_owner.close()


def _accept_until_end(
    listener: socket.socket, server: JobServer, stopper: Stopper, idle_timeout: float, lock: int
) -> float | None:
    """Serve connections until the engine must end. Return the grace period for running jobs (None: unlimited)."""
    while True:
        ready, _, _ = select.select([listener.fileno(), stopper.fileno()], [], [], min(_POLL_SECONDS, idle_timeout))
        if stopper.fileno() in ready:
            log.info("stop requested")
            return stopper.grace
        if listener.fileno() in ready:
            sock, _ = listener.accept()
            server.attach(sock)
        if not is_file_at(server.home.engine_lock, lock):
            log.warning("the home was removed or replaced")
            return 0.0
        if server.lake_owner.lost:
            log.error("Spark's JVM died")
            return GRACE_SECONDS
        if server.end_if_blocked():
            log.warning("tasks of a cancelled job do not end")
            return 0.0
        if server.end_if_idle(idle_timeout):
            wanted = " for another machine, which waits for the lake" if server.lake_owner.is_wanted else ""
            log.info("no job for %s seconds%s", "a few" if wanted else idle_timeout, wanted)
            return 0.0


class Stopper:
    """Wakes the accept loop from a signal handler or a connection's thread."""

    def __init__(self) -> None:
        self.grace: float | None = GRACE_SECONDS
        self._wake, self._waker = os.pipe()

    def fileno(self) -> int:
        return self._wake

    def stop(self, grace: float | None) -> None:
        self.grace = grace
        os.write(self._waker, b"\0")


if __name__ == "__main__":
    sys.exit(main())
