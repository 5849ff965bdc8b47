"""Imports what clients have written since: their transcripts vanish after a while, and live rows wait for them.

Only of clients that the user chose: named in the config as enabled, or attached; and nothing from before their
`history_from`, which stands there when the user did not want the history. Whether anything is due is told by looking at
the files and at what earlier imports took; the engine is asked only then. It looks now and then
(`flush.cold_interval`), and two minutes after live rows came in while the engine runs anyway.
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
from hypaware.daemon.backoff import Backoff
from hypaware.daemon.clock import Clock
from hypaware.daemon.condition import Condition
from hypaware.daemon.engine_job import run_job
from hypaware.daemon.offload import on_thread
from hypaware.engine import client as engine_client
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.backfill.registry import Providers

log = logging.getLogger("hypaware.daemon")

# A machine that was just switched on has other things to do.
_FIRST_SECONDS = 60.0
_AFTER_ROWS_SECONDS = 120.0
_LOOK_SECONDS = 15.0


class CatchingUp:
    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        condition: Condition,
        clock: Clock,
        rows_came_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`rows_came_at`: when the gateway recorded last, by the clock that never jumps."""
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._condition = condition
        self._clock = clock
        self._rows_came_at = rows_came_at
        self._backoff = Backoff()
        self._looked = clock.monotonic()
        self._pause = min(_FIRST_SECONDS, config().flush.cold_interval)
        self._waiting_since: float | None = None
        self._said: str | None = None

    async def run(self) -> None:
        self._announce()
        while True:
            await self._clock.sleep(min(_LOOK_SECONDS, max(0.0, self._wait())))
            if self._wait() <= 0 or await self._meets_rows():
                await self._turn()
                self._announce()

    def _wait(self) -> float:
        return self._looked + self._pause - self._clock.monotonic()

    async def _meets_rows(self) -> bool:
        """Whether live rows came a while ago, and an engine runs that can look for their transcript."""
        came, now = self._rows_came_at(), self._clock.monotonic()
        if came is None or came <= self._looked:
            self._waiting_since = None
            return False
        # From the first of them on: somebody who works all day is not waited for.
        self._waiting_since = self._waiting_since or came
        if now < self._waiting_since + _AFTER_ROWS_SECONDS:
            return False
        return await on_thread(lambda: bool(engine_client.status(self._home)["state"] == "running"), "engine")

    async def _turn(self) -> None:
        self._looked, self._pause = self._clock.monotonic(), self._config().flush.cold_interval
        self._waiting_since = None
        try:
            due = await on_thread(self._due, "transcripts")
            reports = [await run_job(self._engine, "backfill", args) for args in due]
            if reports:
                self._tell([each for report in reports for each in report["providers"]])
            self._backoff.succeeded()
        except HypError as trouble:
            self._pause = self._backoff.failed()
            log.warning("history was not imported: %s; again in %.0f s", trouble.message, self._pause)
            self._condition.caught_up(self._clock.now(), "failed")
        except Exception:
            log.exception("history was not imported; it is tried again at the next look")
            self._condition.caught_up(self._clock.now(), "failed")

    def _due(self) -> list[dict[str, Any]]:
        """What to ask the engine for; nothing if no transcript has changed. Opens none, and starts nothing."""
        from hypaware.backfill import registry

        if not self._home.state.is_file():
            return []  # it would be made, in a home that may just have been removed
        config = self._config()
        known = registry.providers()
        groups: dict[str, list[str]] = {}
        for each in known:
            if is_chosen(self._home, config, each.name):
                groups.setdefault(_history_from(config, each.name), []).append(each.name)
        asked = (self._asked(config, known, names, since or None) for since, names in groups.items())
        return [args for args in asked if args["providers"]]

    def _asked(self, config: Config, known: Providers, names: list[str], since: str | None) -> dict[str, Any]:
        from hypaware.backfill import plan
        from hypaware.backfill.wanted import understand

        wanted = understand(
            self._home, config, known, names=names, since=since, now=self._clock.now(), variables=_variables()
        )
        args = wanted.as_args(telemetry.dev_run_id())
        planned = plan.plan(self._home, config, args)["providers"]
        # One that cannot be looked at says why when the engine tries it.
        due = [each["provider"] for each in planned if each["plan"] is None or each["plan"]["estimated_items"]]
        return {**args, "providers": due, "patient": True}

    def _tell(self, providers: list[dict[str, Any]]) -> None:
        for each in providers:
            if each["rows_written"]:
                log.info("%s: %s rows of history imported", each["provider"], f"{each['rows_written']:,}")
        failed = [each for each in providers if each["status"] != "ok"]
        said = "; ".join(f"{each['provider']}: {(each.get('error') or {}).get('message')}" for each in failed)
        if said and said != self._said:
            log.warning("history was not imported: %s", said)
        self._said = said
        self._condition.caught_up(self._clock.now(), "failed" if failed else "ok")

    def _announce(self) -> None:
        self._condition.awaits_catch_up(self._clock.now() + timedelta(seconds=max(0.0, self._wait())))


def is_chosen(home: Home, config: Config, client: str) -> bool:
    """Whether the user said that this client is to be recorded; being installed is not saying so."""
    if (said := config.clients.get(client)) is not None:
        return said.enabled
    return (home.root / "clients" / client / "attach.json").is_file()


def _history_from(config: Config, client: str) -> str:
    return config.clients.get(client, ClientConfig()).history_from


def _variables() -> dict[str, str]:
    return {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
