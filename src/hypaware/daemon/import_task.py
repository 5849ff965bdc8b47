"""Import new transcript lines periodically: clients delete old transcripts, and live rows wait for their native rows.

Only clients that the user chose are imported: enabled in the config, or attached. Nothing older than a client's
`history_from` is imported; setup writes that key when the user declines the history import. A check compares the files
with the import checkpoints and calls the engine only if something is due. A check runs every `flush.cold_interval`, and
two minutes after live rows arrived if the engine is already running.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.config import ClientConfig, Config
from hypaware.daemon.status_file import StatusFile
from hypaware.engine import client
from hypaware.engine.background import TaskClock, run_cancellable_job, run_in_thread
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.backfill.providers import ProviderRegistry

log = logging.getLogger("hypaware.daemon")

# Leave a machine that has just booted alone for a while.
_FIRST_SECONDS = 60.0
_AFTER_ROWS_SECONDS = 120.0
_POLL_SECONDS = 15.0


class ImportTask:
    name = "transcript import"
    retry_on = (HypError,)

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        status: StatusFile,
        clock: TaskClock,
        last_rows_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`last_rows_at` returns the monotonic time at which the gateway last recorded rows."""
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._status = status
        self._clock = clock
        self._last_rows_at = last_rows_at
        self._checked_at = clock.monotonic()
        self._pause = min(_FIRST_SECONDS, config().flush.cold_interval)
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
        return await run_in_thread(lambda: bool(client.engine_status(self._home)["state"] == "running"), "engine")

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
        from hypaware.backfill import providers as backfill_providers

        if not self._home.state.is_file():
            return []  # opening it would create a state in a home that may just have been removed
        config = self._config()
        providers = backfill_providers.load_providers()
        groups: dict[str, list[str]] = {}
        for each in providers:
            if is_client_chosen(self._home, config, each.name):
                groups.setdefault(config.clients.get(each.name, ClientConfig()).history_from, []).append(each.name)
        jobs = (self._job_args(config, providers, names, since or None) for since, names in groups.items())
        return [args for args in jobs if args["providers"]]

    def _job_args(
        self, config: Config, providers: ProviderRegistry, names: list[str], since: str | None
    ) -> dict[str, Any]:
        from hypaware.backfill import plan
        from hypaware.backfill.request import parse_request

        variables = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
        request = parse_request(
            self._home, config, providers, names=names, since=since, now=self._clock.now(), variables=variables
        )
        args = request.as_args(telemetry.dev_run_id())
        planned = plan.make_plan(self._home, config, args)["providers"]
        # A provider that cannot be surveyed reports its error when the engine runs it.
        due = [each["provider"] for each in planned if each["plan"] is None or each["plan"]["estimated_items"]]
        return {**args, "providers": due, "patient": True}

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


def is_client_chosen(home: Home, config: Config, client: str) -> bool:
    """Return whether the user enabled or attached this client. An installed client alone is not chosen."""
    if (configured := config.clients.get(client)) is not None:
        return configured.enabled
    return (home.root / "clients" / client / "attach.json").is_file()
