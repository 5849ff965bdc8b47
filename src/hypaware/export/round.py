"""One round of one stream, under its lock: finish what was begun, then plan, ship and finish until nothing is new.

@ref delivery#stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypaware import faults
from hypaware.errors import Cancelled, HypError
from hypaware.export import bearings, plan
from hypaware.export.clearance import Clearance
from hypaware.export.report import StreamReport
from hypaware.export.shipping import Held, Shipping
from hypaware.export.sink import Denied, Destination, Sink
from hypaware.export.supply import Supply, ready
from hypaware.export.waiting import GaveUp, Patience, time_after
from hypaware.state import flushes, intents, mirror, streams
from hypaware.state.identity import Identity
from hypaware.state.intents import Intent
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import Stream

if TYPE_CHECKING:
    from hypaware.export.rows import Lake
    from hypaware.home import Home
    from hypaware.state.store import Store

_PAGE_ROWS = 50_000

_before_plan = faults.point("export.plan.before-commit", "chunks are cut, nothing is written down")
_after_plan = faults.point("export.plan.after-commit", "an intent is written down, the side file does not know it")
_after_mirror = faults.point("export.plan.after-mirror", "state and side file know the intent, nothing has left")


@dataclass
class Round:
    home: Home
    store: Store
    identity: Identity
    lake: Lake
    clearance: Clearance
    sink: Sink
    destination: Destination
    declared: bearings.Declared
    max_wait: float
    budget: int | None
    """Intents that the round may finish; None goes on until nothing is new."""
    turns: asyncio.Semaphore
    """Streams take turns, an intent each, so that a long backlog does not keep the others waiting."""
    on_rows: Callable[[int, int], None]

    async def run(self, key: StreamKey) -> StreamReport:
        report = StreamReport(key)
        patience = Patience(self.max_wait)
        try:
            await self._deliver(key, report, patience)
        except Held as reason:
            report.held = True
            report.error = {"kind": "held", "message": str(reason)}
            with self.store.transaction() as connection:
                streams.hold(connection, key, reason.why, str(reason))
        except GaveUp as end:
            self._failed(report, patience, end.kind, str(end), end.retry_after, end.repair)
        except Denied as denial:
            self._failed(report, patience, denial.kind, str(denial), None, denial.repair)
        except Cancelled:
            raise
        except HypError as error:
            self._failed(report, patience, error.kind, error.message, None, next(iter(error.repair), None))
        except Exception as error:
            # Whatever a plugin or a damaged lake throws: the other streams go on.
            self._failed(report, patience, "failed", f"{type(error).__name__}: {error}", None, None)
        return report

    async def _deliver(self, key: StreamKey, report: StreamReport, patience: Patience) -> None:
        stream = bearings.known_stream(self.home, self.store, key, self.destination, self.declared)
        patience.failures = stream.attempts
        report.after = report.last = stream.watermark
        bearings.check_binding(self.home, self.store, stream, self.destination)
        high_water = self._high_water(key)
        # With a plan the watermark was found before, and rises when that is finished.
        if stream.watermark is None and self._standing(key)[1] is None:
            report.after = report.last = await bearings.find_watermark(
                self.store, self.lake, self.clearance, self.sink, self.identity, stream, high_water, patience
            )
        shipping = Shipping(
            self.home, self.store, self.sink, self.lake, self.clearance, self.identity, key, report, patience,
            self.on_rows,
        )  # fmt: skip
        ahead = _Ahead(self.lake, self.clearance, self.sink, key, high_water)
        done = 0
        try:
            while self.budget is None or done < self.budget:
                async with self.turns:
                    if not await self._one_intent(shipping, ahead, high_water):
                        break
                done += 1
            else:
                report.drained = False
        finally:
            await ahead.close()
        with self.store.transaction() as connection:
            streams.succeeded(connection, key)

    async def _one_intent(self, shipping: Shipping, ahead: _Ahead, high_water: int) -> bool:
        """Whether there was something to do."""
        key = shipping.key
        stream, intent = self._standing(key)
        watermark = stream.watermark or 0
        supply: Supply | None = None
        if intent is None:
            if watermark > high_water:
                raise GaveUp(
                    "lake_behind_watermark",
                    f"rows up to {watermark} were delivered, and the lake ends at {high_water}: it was rolled back or "
                    "restored without its state",
                    repair="hyp verify",
                )
            if watermark == high_water:
                return False
            supply = await ahead.take(watermark)
            intent = self._plan(key, watermark, supply)
            ahead.start(supply.reached)
        await shipping.finish(intent, supply, watermark)
        shipping.report.last = intent.last
        return True

    def _plan(self, key: StreamKey, after: int, supply: Supply) -> Intent:
        pieces = plan.cut(key, self.identity, after, supply.reached, supply.seqs, supply.payload, self.sink.limits)
        intent = Intent(key, after, supply.reached, tuple(pieces))
        _before_plan()
        with self.store.transaction() as connection:
            intents.plan(connection, intent)
        _after_plan()
        # Before the first byte leaves: a lost state must still know under which ids it may have.
        mirror.write(self.home.mirror, self.store)
        _after_mirror()
        return intent

    def _standing(self, key: StreamKey) -> tuple[Stream, Intent | None]:
        with self.store.reading() as connection:
            stream, intent = streams.load(connection, key), intents.pending(connection, key)
        assert stream is not None
        return stream, intent

    def _high_water(self, key: StreamKey) -> int:
        with self.store.reading() as connection:
            return flushes.high_water(connection, key.dataset).get(key.dataset, {}).get(key.source, 0)

    def _failed(
        self, report: StreamReport, patience: Patience, kind: str, message: str, wait: float | None, repair: str | None
    ) -> None:
        report.error = {"kind": kind, "message": message, **({"repair": [repair]} if repair else {})}
        retry_at = time_after(wait) if wait else None
        with self.store.transaction() as connection:
            streams.failed(connection, report.key, message, retry_at, patience.failures)


class _Ahead:
    """Reads, clears and encodes the next rows while the last ones travel; never more than one page.

    The first page holds about a chunk, so that a backlog begins to flow at once; the next ones grow.
    """

    def __init__(self, lake: Lake, clearance: Clearance, sink: Sink, key: StreamKey, until: int) -> None:
        self._lake, self._clearance, self._sink, self._key, self._until = lake, clearance, sink, key, until
        self._task: asyncio.Task[Supply] | None = None
        self._after = -1
        self._most = min(sink.limits.rows, _PAGE_ROWS)

    def start(self, after: int) -> None:
        if after < self._until:
            self._after, self._task = after, asyncio.create_task(self._read(after))

    async def take(self, after: int) -> Supply:
        if self._task and self._after == after:
            task, self._task = self._task, None
            return await task
        await self.close()
        return await self._read(after)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            # Not awaited itself: a cancellation of ours must not be taken for that of the task.
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()

    async def _read(self, after: int) -> Supply:
        most, self._most = self._most, min(2 * self._most, _PAGE_ROWS)
        page = await self._lake.page(self._key.dataset, self._key.source, after, self._until, most)
        return await ready(self._clearance, self._sink, self._key.dataset, page.table, page.after, page.reached)
