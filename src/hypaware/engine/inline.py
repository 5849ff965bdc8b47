"""Runs jobs in the process of the command (`HYP_ENGINE=inline`).

It uses the engine's server over a socket pair within the process, so events, errors and Ctrl-C work in the same way.
Spark stays open for the next job and is closed when the process exits. A process can have only one Spark session, so a
job for another home closes the first session. If an engine of the home starts while a job waits for the lake, the job
is sent to that engine, which may hold the lake for a long time.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.engine import launcher
from hypaware.engine.lake_owner import LakeOwner, SparkHandle, on_open_step, start_spark
from hypaware.engine.protocol import JobConnection, is_same_version
from hypaware.engine.server import LOG_FORMAT, JobServer, log
from hypaware.home import Home, durable_files

if TYPE_CHECKING:
    from hypaware.config import Config


class InlineEngine:
    """The job server of this process and its Spark session."""

    def __init__(
        self, home: Home, config: Config, jobs: str, open_spark: Callable[[], SparkHandle] | None = None
    ) -> None:
        self.home = home
        self.config = config
        open_spark = open_spark or partial(start_spark, home, config.engine)
        self.lake_owner = LakeOwner(home, open_spark, on_open_step(jobs), self._is_engine_alive)
        self._server = JobServer(home, jobs, lambda: self.config, self.lake_owner, launcher.engine_log(home))
        self._log = _LogFile(home)

    def connect(self) -> JobConnection:
        caller_end, server_end = socket.socketpair()
        self._server.attach(server_end)
        connection = JobConnection(caller_end)
        connection.receive()  # the greeting
        return connection

    def close(self) -> None:
        self._server.drain(grace=0.0, cancel_seconds=0.0)
        self.lake_owner.close()
        self._log.close()

    def _is_engine_alive(self) -> bool:
        if (found := launcher.connect_engine(self.home)) is None:
            return False
        connection, greeting = found
        connection.close()
        return is_same_version(greeting)


class _LogFile(logging.FileHandler):
    """Writes the tracebacks of failed jobs to the engine's log, which is created on the first write."""

    def __init__(self, home: Home) -> None:
        super().__init__(launcher.engine_log(home), encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(LOG_FORMAT))
        self.setLevel(logging.WARNING)
        log.addHandler(self)
        log.propagate = False

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        durable_files.make_dir(path.parent)
        return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))

    def close(self) -> None:
        log.removeHandler(self)
        super().close()


_current: InlineEngine | None = None


def connect(engine: launcher.Engine, config: Config) -> JobConnection:
    """Return a connection to the engine of the home if one is running, otherwise to the job server of this process."""
    global _current
    # An engine would wait forever for a lake that this process owns.
    owns_lake = _current is not None and _current.home == engine.home and _current.lake_owner.owns_lake
    if not owns_lake and (found := launcher.connect_engine(engine.home)) is not None:
        connection, greeting = found
        if is_same_version(greeting):
            close_inline()
            return connection
        with connection:
            launcher.ask_to_stop(connection)
    if _current is None or _current.home != engine.home:
        close_inline()
        engine.check()
        _current = InlineEngine(engine.home, config, engine.jobs)
    _current.config = config
    return _current.connect()


def close_inline() -> None:
    """Close Spark in this process, and release the lake."""
    global _current
    if _current is not None:
        inline, _current = _current, None
        inline.close()


@atexit.register
def _close_at_exit() -> None:
    # A second Ctrl-C stops waiting. The JVM exits when this process has ended.
    with suppress(KeyboardInterrupt):
        close_inline()
