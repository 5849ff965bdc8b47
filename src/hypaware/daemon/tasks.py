"""The daemon's periodic tasks: flush the spool, import transcripts, update the index, export to each sink.

A check reads the state, the spool and the files first, and calls the engine only if something is due. Every sink has
its own export task, so no sink waits for another.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.config import ClientConfig, Config
from hypaware.daemon.status_file import StatusFile
from hypaware.engine import client
from hypaware.engine.background import TaskClock, run_cancellable_job, run_in_thread
from hypaware.engine.jobs import Event
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.export.sink_registry import next_round_at
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.spool import reader
from hypaware.state.location import has_state

if TYPE_CHECKING:
    from subprocess import Popen

log = logging.getLogger("hypaware.daemon")

FINISH_SECONDS = 10.0
# Leave a machine that has just booted alone for a while.
_FIRST_IMPORT_SECONDS = 60.0
_AFTER_ROWS_SECONDS = 120.0
_INDEX_SECONDS = 5.0
# The native rows of live rows are in the spool long before, if their transcript is followed.
_FOLLOWED_SECONDS = 30.0
# A sleep of the machine or a jump of the clock is noticed within this time.
_POLL_SECONDS = 15.0
# Longer waits of an export do not block the engine: the state records the time, and a later round continues.
_MAX_WAIT_SECONDS = 2.0
# Intents per stream in one export job. A changed config takes effect between two jobs.
_BUDGET = 20


class FlushTask:
    """Flushes every `flush.interval` while the engine runs, less often if it would have to start.

    A stopped engine is started after `flush.cold_interval`, or when the spool holds as much as one commit takes
    (`flush.max_rows`, `flush.max_bytes`). Until then, live rows that may wait for their transcript stay in the spool.
    The first check runs at start, for rows that were left while no daemon ran. When the daemon stops, it flushes once
    more if the engine is running and answers in time.
    """

    name = "flush"
    retry_on = (HypError,)

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        status: StatusFile,
        clock: TaskClock,
        covers_all: Callable[[], bool] = lambda: False,
    ) -> None:
        """`covers_all` returns whether all transcripts are followed, so that live rows need not wait for an import."""
        self._engine = engine
        self._home = engine.home
        self._config = config
        self._status = status
        self._clock = clock
        self._covers_all = covers_all
        self._pause = 0.0
        self._flushed_at: float | None = None

    async def wait(self, retry_in: float | None) -> None:
        await self._clock.sleep(self._pause if retry_in is None else retry_in)
        self._pause = self._config().flush.interval

    async def check(self, is_due: Callable[[], bool] | None = None) -> None:
        if not await run_in_thread(is_due or self._is_due, "spool"):
            return
        self._flushed_at = self._clock.monotonic()
        args: dict[str, Any] = {"dataset": None, "patient": True}
        if self._covers_all():
            args["deferral"] = _FOLLOWED_SECONDS
        report = await run_cancellable_job(self._engine, "flush", args)
        rows = sum(each["rows_written"] for each in report["datasets"])
        if rows:
            log.info("%s rows committed", f"{rows:,}")
        self._status.update("flush", last_flush=self._clock.now(), last_status="ok")

    def record_failure(self, retry_in: float | None) -> None:
        self._status.update("flush", last_flush=self._clock.now(), last_status="failed")
        if retry_in is not None:
            self._flushed_at = None

    def _is_due(self) -> bool:
        limits = self._config().flush
        if not self._has_rows():
            return False
        if self._flushed_at is None or self._clock.monotonic() - self._flushed_at >= limits.cold_interval:
            return True
        if _is_engine_running(self._home):
            return True
        spooled = [reader.summarize_spool(self._home, name, skip_deferred=True) for name in datasets.list_names()]
        return any(each.rows >= limits.max_rows or each.bytes >= limits.max_bytes for each in spooled)

    def _has_rows(self) -> bool:
        from hypaware.lake import health

        # Rows of a dataset whose plugin is not installed wait for the plugin, so they do not count.
        return has_state(self._home) and health.has_pending_rows(
            self._home, datasets.list_names(), make=False, skip_deferred=True
        )

    async def finish(self, limit: float = FINISH_SECONDS) -> None:
        """Flush once more after the task was cancelled. Rows not committed in time stay in the spool, durably."""
        with suppress(TimeoutError, HypError, OSError):
            async with asyncio.timeout(limit):
                await self.check(lambda: _is_engine_running(self._home) and self._has_rows())


class ImportTask:
    """Imports what is not followed: history, large new parts, and everything while following fails.

    Only clients that the user chose are imported: enabled in the config, or attached. Nothing older than a client's
    `history_from` is imported; setup writes that key when the user declines the history import. A check runs every
    `flush.cold_interval`, and two minutes after live rows arrived if the engine is already running.
    """

    name = "transcript import"
    retry_on = (HypError,)

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        status: StatusFile,
        clock: TaskClock,
        last_rows_at: Callable[[], float | None] = lambda: None,
        covered: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """`last_rows_at` returns the monotonic time at which the gateway last recorded rows.

        `covered` returns the clients whose transcripts are followed and need no import.
        """
        self._engine = engine
        self._home = engine.home
        self._config = config
        self._status = status
        self._clock = clock
        self._last_rows_at = last_rows_at
        self._covered = covered
        self._checked_at = clock.monotonic()
        self._pause = min(_FIRST_IMPORT_SECONDS, config().flush.cold_interval)
        self._first_rows_at: float | None = None
        self._last_error: str | None = None

    async def wait(self, retry_in: float | None) -> None:
        if retry_in is not None:
            self._pause = retry_in
        next_check = self._clock.now() + timedelta(seconds=max(0.0, self._remaining()))
        self._status.update("catch_up", next_look=next_check)
        while True:
            await self._clock.sleep(min(_POLL_SECONDS, max(0.0, self._remaining())))
            if self._remaining() <= 0 or await self._has_recent_rows():
                return

    def _remaining(self) -> float:
        return self._checked_at + self._pause - self._clock.monotonic()

    async def _has_recent_rows(self) -> bool:
        """Return whether live rows arrived two minutes ago and a running engine can import their transcript."""
        last, now = self._last_rows_at(), self._clock.monotonic()
        if last is None or last <= self._checked_at:
            self._first_rows_at = None
            return False
        # Count from the first new row, so that a user who works all day does not delay the import.
        self._first_rows_at = self._first_rows_at or last
        if now < self._first_rows_at + _AFTER_ROWS_SECONDS:
            return False
        return await run_in_thread(lambda: _is_engine_running(self._home), "engine")

    async def check(self) -> None:
        self._checked_at, self._pause = self._clock.monotonic(), self._config().flush.cold_interval
        self._first_rows_at = None
        due = await run_in_thread(self._due_jobs, "transcripts")
        reports = [await run_cancellable_job(self._engine, "backfill", args) for args in due]
        if reports:
            self._report([each for report in reports for each in report["providers"]])

    def record_failure(self, _retry_in: float | None) -> None:
        self._status.update("catch_up", last_run=self._clock.now(), last_status="failed")

    def _due_jobs(self) -> list[dict[str, Any]]:
        """Return the arguments of the import jobs that are due. Open no transcript and start no process."""
        from hypaware.backfill.providers import load_providers
        from hypaware.backfill.report import make_plan
        from hypaware.backfill.request import parse_request

        if not has_state(self._home):
            return []  # opening it would create a state in a home that may just have been removed
        config = self._config()
        providers = load_providers()
        variables = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
        groups: dict[str, list[str]] = {}
        covered = self._covered()
        for each in providers:
            if is_client_chosen(self._home, config, each.name) and each.name not in covered:
                groups.setdefault(config.clients.get(each.name, ClientConfig()).history_from, []).append(each.name)
        jobs = []
        for since, names in groups.items():
            now = self._clock.now()
            request = parse_request(
                self._home, config, providers, names=names, since=since or None, now=now, variables=variables
            )
            planned = make_plan(self._home, config, request.args)["providers"]
            # A provider that cannot be surveyed reports its error when the engine runs it.
            due = [each["provider"] for each in planned if each["plan"] is None or each["plan"]["estimated_items"]]
            if due:
                jobs.append({**request.args, "providers": due})
        return jobs

    def _report(self, providers: list[dict[str, Any]]) -> None:
        for each in providers:
            if each["rows_written"]:
                log.info("%s: imported %s rows of history", each["provider"], f"{each['rows_written']:,}")
        failed = [each for each in providers if each["status"] != "ok"]
        error = "; ".join(f"{each['provider']}: {(each.get('error') or {}).get('message')}" for each in failed)
        if error and error != self._last_error:
            log.warning("transcript import failed: %s", error)
        self._last_error = error
        self._status.update("catch_up", last_run=self._clock.now(), last_status="failed" if failed else "ok")


def _is_engine_running(home: Home) -> bool:
    return bool(client.engine_status(home)["state"] == "running")


def is_client_chosen(home: Home, config: Config, client: str) -> bool:
    """Return whether the user enabled or attached this client. An installed client alone is not chosen."""
    if (configured := config.clients.get(client)) is not None:
        return configured.enabled
    return (home.root / "clients" / client / "attach.json").is_file()


class IndexTask:
    """Keeps the index of the reading commands up to date: after each commit it starts the builder.

    The builder is a process of its own, because reading data files takes memory that the daemon does not need.
    """

    name = "index"
    retry_on = (HypError, OSError)

    def __init__(self, home: Home, clock: TaskClock) -> None:
        self._home = home
        self._clock = clock
        self._builder: Popen[bytes] | None = None

    async def wait(self, retry_in: float | None) -> None:
        await self._clock.sleep(_INDEX_SECONDS if retry_in is None else retry_in)

    async def check(self) -> None:
        await run_in_thread(self._check, "index")

    def _check(self) -> None:
        from hypaware.index import builder

        is_running = self._builder is not None and self._builder.poll() is None
        if not is_running and has_state(self._home) and builder.is_behind(self._home):
            self._builder = builder.start_builder(self._home)

    def record_failure(self, retry_in: float | None) -> None:
        """Do nothing: `hyp index status` shows how far the index is."""


class ScheduleTimer:
    """The next time of a schedule. The wall clock may jump or skip a sleep of the machine.

    Scheduled times that were missed are due once, however many have passed. If the clock is set back, the next time
    follows the schedule from the new present.
    """

    def __init__(self, schedule: str, now: datetime) -> None:
        self._schedule = schedule
        self.next = next_round_at(schedule, now)

    def is_due(self, now: datetime) -> bool:
        """Return whether a scheduled time has passed, and advance to the next one."""
        due = now >= self.next
        following = next_round_at(self._schedule, now)
        if due or following < self.next:
            self.next = following
        return due


class ExportTask:
    """Exports to one sink on its schedule, one round after the other.

    If the destination asked for a delay, the next round runs at the time it named; if the engine failed, it runs after
    a short backoff. Neither waits for the schedule.
    """

    retry_on = (Retryable, NotReady)

    def __init__(self, engine: Engine, config: Config, sink: str, status: StatusFile, clock: TaskClock) -> None:
        self.name = f"{sink}: export"
        self._engine = engine
        self._home = engine.home
        self._config = config
        self._sink = sink
        self._status = status
        self._clock = clock
        self._timer = ScheduleTimer(config.sinks[sink].schedule, clock.now())
        self._retry_at: datetime | None = None
        self._is_first_check = True

    async def wait(self, retry_in: float | None) -> None:
        if retry_in is not None:
            self._retry_at = self._clock.now() + timedelta(seconds=retry_in)
        self._status.update_sink(self._sink, next_round=self._next_round())
        while True:
            now = self._clock.now()
            if self._timer.is_due(now) or (self._retry_at is not None and now >= self._retry_at):
                return
            await self._clock.sleep(min(_POLL_SECONDS, (self._next_round() - now).total_seconds()))

    def _next_round(self) -> datetime:
        return self._timer.next if self._retry_at is None else min(self._timer.next, self._retry_at)

    async def check(self) -> None:
        args = {"sinks": [self._sink], "max_wait": _MAX_WAIT_SECONDS, "budget": _BUDGET, "patient": True}
        self._retry_at = None
        is_progressing = True
        while True:
            due = await run_in_thread(self._due_at, f"state {self._sink}")
            self._is_first_check = False
            if due is None or due > self._clock.now():
                self._retry_at = due
                return
            if not is_progressing:
                return
            report = await run_cancellable_job(self._engine, "export", args, self._on_event)
            (done,) = report["sinks"]
            self._report(done)
            # A job may end because its budget is used up. Continue immediately, unless it delivered nothing.
            is_progressing = any(stream["chunks"] for stream in done["streams"])

    def record_failure(self, _retry_in: float | None) -> None:
        self._status.update_sink(self._sink, last_round=self._clock.now(), last_status="failed")

    def _due_at(self) -> datetime | None:
        from hypaware.export.status import next_due_time
        from hypaware.state.home_opener import open_home

        if not has_state(self._home):
            return None  # opening it would create a state in a home that may just have been removed
        with closing(open_home(self._home, make=False).store) as store:
            return next_due_time(
                self._home, self._config, store, self._sink, self._clock.now(), config_changed=self._is_first_check
            )

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            log.info("%s: %s", self._sink, event["message"])

    def _report(self, done: dict[str, Any]) -> None:
        rows = sum(stream["rows"] for stream in done["streams"])
        size = sum(stream["bytes"] for stream in done["streams"])
        log.info("%s: %s, %s rows delivered (%.1f MB)", self._sink, done["status"], f"{rows:,}", size / 1e6)
        if error := done.get("error"):
            log.warning("%s: %s", self._sink, error["message"])
        for stream in done["streams"]:
            if (error := stream.get("error")) and error != done.get("error"):
                log.warning("%s: %s of %s: %s", self._sink, stream["dataset"], stream["source"], error["message"])
        self._status.update_sink(self._sink, last_round=self._clock.now(), last_status=done["status"])
