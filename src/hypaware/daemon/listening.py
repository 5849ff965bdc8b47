"""The gateway as a part of the daemon: opened, followed, looked after, and closed without hurting who uses it.

It listens for as long as somebody could call: a client is enabled or attached, or the config has an upstream. Routes
change in place, so that connections and streams go on; a new address is opened before the old one is let go. An address
that cannot be had is said, tried again, and holds nothing else up. A stop is heard in this order: nobody new comes in,
the address is given back, what is under way has its grace, everything that has ended is durable, the spool is sealed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

from hypaware import telemetry
from hypaware.capture import handover
from hypaware.capture.gateway import Gateway
from hypaware.capture.handover import Taken
from hypaware.capture.sightings import Sightings
from hypaware.capture.taking_down import TakingDown
from hypaware.clients.claude import session_context
from hypaware.config import Config
from hypaware.daemon.backoff import Tries
from hypaware.daemon.clock import Clock
from hypaware.daemon.condition import Condition
from hypaware.daemon.gateway_wanted import Wanted, wanted
from hypaware.daemon.offload import on_thread
from hypaware.errors import HypError, NotReady
from hypaware.home import Home
from hypaware.spool.writer import Spool

log = logging.getLogger("hypaware.daemon")

GRACE_SECONDS = 10.0
"""For streams that run when the daemon is stopped."""
_LOOK_SECONDS = 1.0


@dataclass
class _Open:
    """A gateway that listens, or did."""

    gateway: Gateway
    taken: Taken
    sightings: Sightings
    listen: str
    follows: Wanted

    @property
    def address(self) -> str:
        return address_of(self.taken)


class Listening:
    def __init__(self, spool: Spool, config: Callable[[], Config], condition: Condition, clock: Clock) -> None:
        """`spool` is its own from here on."""
        self._spool = spool
        self._home: Home = spool.home
        self._config = config
        self._condition = condition
        self._clock = clock
        self._followed = config()
        self._keep = TakingDown(spool, self._followed, facts=_facts(self._home), saw=self._saw)
        self._numbers = count()
        self._open: _Open | None = None
        self._moved: list[_Open] = []
        """No longer listening, but whoever was connected is served until the daemon ends."""
        self._opening, self._tending = Tries(clock), Tries(clock)
        self._woken = asyncio.Event()
        self._tended: asyncio.Future[None] | None = None
        self._sighting = threading.Lock()
        self._state = "off"
        self._error: str | None = None
        self._since = clock.now()
        self._rows_seen = 0
        self.rows_came_at: float | None = None
        """When the newest rows were seen, by the clock that never jumps."""

    async def begin(self) -> None:
        """The first look: afterwards the address answers, or the condition says why not."""
        await on_thread(self._clean_up, "gateway")
        await self._turn()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
            self._woken.clear()
            await self._turn()

    def reload(self) -> None:
        self._opening.at_once()
        self._woken.set()

    async def end(self) -> None:
        """After `run` was cancelled. Returns when everything that has ended is durable and sealed."""
        if self._tended is not None:
            # It may be handing over the very socket.
            await asyncio.wait([self._tended])
        self._keep.hurry()
        if (now := self._open) is not None:
            self._open = None
            await self._let_go(now)
        await asyncio.gather(*(each.gateway.stop(GRACE_SECONDS) for each in self._moved))
        if now is not None:
            self._write_sightings(now)
        await on_thread(self._keep.close, "store")
        self._tell()
        await on_thread(self._spool.close, "spool")

    async def _turn(self) -> None:
        try:
            await self._follow()
            await self._tend()
        except HypError as trouble:
            self._in_trouble(trouble.message)
        except Exception as error:
            log.exception("the gateway is in trouble")
            self._in_trouble(type(error).__name__)
        else:
            if self._open is not None:
                self._error = None
        self._tell()

    async def _follow(self) -> None:
        config = self._config()
        asked = await on_thread(lambda: wanted(self._home, config), "attachments")
        if config is not self._followed:
            self._keep.follow(config)
            self._followed = config
        for each in (*self._moved, *([self._open] if self._open else ())):
            if each.follows.routing != asked.routing:
                each.gateway.reroute(asked.routes())
                each.follows = asked
                log.info("the gateway on %s goes by new routes", each.listen)
        now = self._open
        if not asked.is_needed:
            if now is not None:
                await self._let_go(now)
                self._open = None
            if self._state != "off":
                log.info("the gateway is off: no client is enabled, and none is attached")
                self._become("off")
        elif now is None or now.listen != asked.listen:
            if not self._opening.are_due():
                return
            if now is not None:
                self._write_sightings(now)
            with self._opening:
                self._open = await self._opened(asked)
            self._become("listening")
            log.info("the gateway listens on %s", self._open.address)
            if now is not None:
                await self._let_go(now)

    async def _opened(self, asked: Wanted) -> _Open:
        taken = await on_thread(lambda: handover.open_address(self._home, asked.listen), "address")
        try:
            gateway = Gateway(
                taken.socket,
                asked.routes(),
                self._keep,
                self._home.run / "spill" / str(next(self._numbers)),
                overhead=_overhead,
                own_pages={handover.HEALTH: lambda: handover.health(self._home, "gateway")},
            )
            await gateway.start()
        except FileNotFoundError as gone:
            taken.give_back()
            raise NotReady(f"{self._home.root} is gone", kind="home_gone") from gone
        except BaseException:
            taken.give_back()
            raise
        return _Open(gateway, taken, Sightings(self._home, address_of(taken)), asked.listen, asked)

    async def _let_go(self, now: _Open) -> None:
        """Nobody new comes in by this address, not through us."""
        await now.gateway.stop_listening()
        now.taken.give_back()
        self._moved.append(now)

    def _saw(self, client: str, at: datetime) -> None:
        """On the recorder's thread."""
        with self._sighting:
            for each in (*self._moved, *([self._open] if self._open else ())):
                each.sightings.saw(client, at)

    def _write_sightings(self, of: _Open) -> None:
        with self._sighting:
            of.sightings.write()

    async def _tend(self) -> None:
        if self._open is None or not self._tending.are_due():
            return
        self._tended = on_thread(self._look_after, "tend")
        with self._tending:
            await asyncio.shield(self._tended)

    def _look_after(self) -> None:
        """On a thread of its own: it may have to start a process."""
        if (now := self._open) is None:
            return
        self._write_sightings(now)
        if now.taken.tend():
            log.info("a listener stands by for %s, for when this daemon does not run", now.address)

    def _in_trouble(self, error: str) -> None:
        if self._open is None:
            if (self._state, self._error) != ("down", error):
                log.error("nothing is recorded: %s; it is tried again", error)
            self._become("down", error)
        elif self._error != error:
            # It serves; only what was asked of it besides could not be done.
            log.warning("the gateway on %s: %s", self._open.address, error)
            self._error = error

    def _become(self, state: str, error: str | None = None) -> None:
        if state != self._state:
            self._since = self._clock.now()
        self._state, self._error = state, error

    def _tell(self) -> None:
        tally = self._keep.tally
        if tally.rows > self._rows_seen:
            self._rows_seen, self.rows_came_at = tally.rows, self._clock.monotonic()
        counts = [each.gateway.counts for each in (*self._moved, *([self._open] if self._open else ()))]
        dropped = tally.lost + sum(each.dropped + each.failed for each in counts)
        self._condition.gateway(
            {
                "listen": self._open.address if self._open else self._config().gateway.listen,
                "state": self._state,
                "error": self._error,
                "since": self._since,
                "exchanges": tally.recorded + tally.ignored + dropped,
                "recorded": tally.recorded,
                "incomplete": sum(each.incomplete for each in counts),
                "dropped": dropped,
                "ignored": tally.ignored,
                "unknown": dict(tally.unknown),
                "without_row": dict(tally.without_row),
                "rejected_rows": tally.rejected_rows,
                "redacted": dict(tally.redacted),
                "last_exchange_at": tally.last_exchange_at,
            }
        )

    def _clean_up(self) -> None:
        """What an earlier daemon had under way is lost with it."""
        shutil.rmtree(self._home.run / "spill", ignore_errors=True)


def address_of(taken: Taken) -> str:
    host, port = taken.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _overhead(milliseconds: float) -> None:
    telemetry.record("hyp_gateway_overhead_ms", milliseconds, hyp_component="gateway")


def _facts(home: Home) -> Callable[[str], Mapping[str, Any]]:
    environment = {"HYP_HOME": str(home.root)}
    return lambda session: session_context.records(environment).get(session, {})
