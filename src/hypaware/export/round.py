"""One round of one stream, under its lock: finish the pending intent, then plan and deliver until nothing is new.

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

_before_plan = faults.point("export.plan.before-commit", "chunks are cut, no intent is recorded")
_after_plan = faults.point("export.plan.after-commit", "an intent is recorded in the state, not in the mirror")
_after_mirror = faults.point("export.plan.after-mirror", "state and mirror hold the intent, nothing is sent")


@dataclass
class Round:
    home: Home
    store: Store
    identity: Identity
    lake: Lake
    gate: Clearance
    sink: Sink
    destination: Destination
    addresses: bearings.Declared
    max_wait: float
    budget: int | None
    """Intents that the round may finish; None for no limit."""
    slots: asyncio.Semaphore
    """A stream takes a slot for each intent, so that a long backlog does not block the other streams."""
    on_rows: Callable[[int, int], None]

    async def run(self, key: StreamKey) -> StreamReport:
        report = StreamReport(key)
        retries = Patience(self.max_wait)
        try:
            await self._deliver(key, report, retries)
        except Held as hold:
            report.held = True
            report.error = {"kind": "held", "message": str(hold)}
            with self.store.transaction() as connection:
                streams.hold(connection, key, hold.why, str(hold))
        except GaveUp as end:
            self._record_failure(report, retries, end.kind, str(end), end.retry_after, end.repair)
        except Denied as denial:
            self._record_failure(report, retries, denial.kind, str(denial), None, denial.repair)
        except Cancelled:
            raise
        except HypError as error:
            self._record_failure(report, retries, error.kind, error.message, None, next(iter(error.repair), None))
        except Exception as error:
            # An error of a plugin or of a damaged lake does not stop the other streams.
            self._record_failure(report, retries, "failed", f"{type(error).__name__}: {error}", None, None)
        return report

    async def _deliver(self, key: StreamKey, report: StreamReport, retries: Patience) -> None:
        stream = bearings.known_stream(self.home, self.store, key, self.destination, self.addresses)
        retries.failures = stream.attempts
        report.after = report.last = stream.watermark
        bearings.check_binding(self.home, self.store, stream, self.destination)
        high_water = self._high_water(key)
        # With a pending intent the watermark has been found before; it rises when the intent is finished.
        if stream.watermark is None and self._load_stream(key)[1] is None:
            report.after = report.last = await bearings.find_watermark(
                self.store, self.lake, self.gate, self.sink, self.identity, stream, high_water, retries
            )
        shipping = Shipping(
            self.home, self.store, self.sink, self.lake, self.gate, self.identity, key, report, retries, self.on_rows
        )
        prefetch = _Ahead(self.lake, self.gate, self.sink, key, high_water)
        finished = 0
        try:
            while self.budget is None or finished < self.budget:
                async with self.slots:
                    if not await self._deliver_next(shipping, prefetch, high_water):
                        break
                finished += 1
            else:
                report.drained = False
        finally:
            await prefetch.close()
        with self.store.transaction() as connection:
            streams.succeeded(connection, key)

    async def _deliver_next(self, shipping: Shipping, prefetch: _Ahead, high_water: int) -> bool:
        """Deliver the pending or the next intent. Returns False if there was none."""
        key = shipping.key
        stream, intent = self._load_stream(key)
        watermark = stream.watermark or 0
        prepared: Supply | None = None
        if intent is None:
            if watermark > high_water:
                raise GaveUp(
                    "lake_behind_watermark",
                    f"rows up to {watermark} were delivered, but the lake ends at {high_water}: it was rolled back or "
                    "restored without its state",
                    repair="hyp verify",
                )
            if watermark == high_water:
                return False
            prepared = await prefetch.take(watermark)
            intent = self._plan(key, watermark, prepared)
            prefetch.start(prepared.reached)
        await shipping.finish(intent, prepared, watermark)
        shipping.report.last = intent.last
        return True

    def _plan(self, key: StreamKey, after: int, prepared: Supply) -> Intent:
        chunks = plan.cut(
            key, self.identity, after, prepared.reached, prepared.seqs, prepared.payload, self.sink.limits
        )
        intent = Intent(key, after, prepared.reached, tuple(chunks))
        _before_plan()
        with self.store.transaction() as connection:
            intents.plan(connection, intent)
        _after_plan()
        # Before the first byte leaves: if the state is lost, the mirror must know the ids that may have been sent.
        mirror.write(self.home.mirror, self.store)
        _after_mirror()
        return intent

    def _load_stream(self, key: StreamKey) -> tuple[Stream, Intent | None]:
        with self.store.reading() as connection:
            stream, intent = streams.load(connection, key), intents.pending(connection, key)
        assert stream is not None
        return stream, intent

    def _high_water(self, key: StreamKey) -> int:
        with self.store.reading() as connection:
            return flushes.high_water(connection, key.dataset).get(key.dataset, {}).get(key.source, 0)

    def _record_failure(
        self, report: StreamReport, retries: Patience, kind: str, message: str, wait: float | None, repair: str | None
    ) -> None:
        report.error = {"kind": kind, "message": message, **({"repair": [repair]} if repair else {})}
        retry_at = time_after(wait) if wait else None
        with self.store.transaction() as connection:
            streams.failed(connection, report.key, message, retry_at, retries.failures)


class _Ahead:
    """Reads, gates and encodes the next page while the last one is sent; never more than one page.

    The first page holds about one chunk, so that a backlog starts to flow at once. Each further page is twice as large.
    """

    def __init__(self, lake: Lake, gate: Clearance, sink: Sink, key: StreamKey, until: int) -> None:
        self._lake, self._gate, self._sink, self._key, self._until = lake, gate, sink, key, until
        self._task: asyncio.Task[Supply] | None = None
        self._after = -1
        self._page_rows = min(sink.limits.rows, _PAGE_ROWS)

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
            # Not awaited directly: our own cancellation must not be mistaken for that of the task.
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()

    async def _read(self, after: int) -> Supply:
        rows, self._page_rows = self._page_rows, min(2 * self._page_rows, _PAGE_ROWS)
        page = await self._lake.page(self._key.dataset, self._key.source, after, self._until, rows)
        return await ready(self._gate, self._sink, self._key.dataset, page.table, page.after, page.reached)
