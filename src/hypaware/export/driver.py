"""All rounds of a delivery: every chosen sink, its streams side by side; one's trouble never holds another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware import telemetry
from hypaware.config import Config
from hypaware.errors import Cancelled, HypError
from hypaware.export import bearings, clearance, configured, guarded, locks, status, waiting
from hypaware.export.report import SinkReport, StreamReport
from hypaware.export.round import Round
from hypaware.export.sink import Denied, Destination, OnSpark, Sink
from hypaware.export.standing import Standing, standings
from hypaware.export.waiting import GaveUp, Patience
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from hypaware.export.rows import Lake
    from hypaware.home import Home
    from hypaware.opening import OpenHome

T = TypeVar("T")

# Each has a page or two in memory.
_STREAMS_AT_ONCE = 4


@dataclass(frozen=True)
class Terms:
    """How a delivery is run."""

    max_wait: float = 60.0
    budget: int | None = None
    patient: bool = False
    """Whether a stream whose destination asked for time is left in peace until then; a user's command is not."""


async def _all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results when all have ended, also if one of them failed: none goes on alone, with a lock that it holds."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]


def _asked_for_time(standing: Standing) -> StreamReport | None:
    """What to say of a stream that is to be left in peace for now; None if it may be tried."""
    now = datetime.now(UTC)
    due = standing.due_at(now, anew=True)
    if due is None or due <= now or standing.stream is None:
        return None
    error = {"kind": "waiting", "message": f"not before {due.isoformat()}: {standing.stream.last_error}"}
    return StreamReport(standing.key, standing.watermark, standing.watermark, error=error)


def _unheard(_sink: str, _rows: int, _bytes: int) -> None:
    return None


@dataclass
class Driver:
    opened: OpenHome
    config: Config
    lake: Lake
    terms: Terms = Terms()
    on_spark: OnSpark | None = None
    on_rows: Callable[[str, int, int], None] = _unheard

    @cached_property
    def clearance(self) -> clearance.Clearance:
        """By this driver's config: whoever delivers cannot do it without."""
        return clearance.of(self.home, self.config)

    async def deliver(self, chosen: Sequence[str]) -> list[SinkReport]:
        return await _all_of(self._deliver_to(name) for name in chosen)

    async def _deliver_to(self, name: str) -> SinkReport:
        report = SinkReport(name)
        due: list[Standing] = []
        with telemetry.span("sink.tick", component="export", operation="tick", sink=name) as span:
            try:
                await self._tick(name, report, due)
            except (Denied, GaveUp) as trouble:
                repair = {"repair": [trouble.repair]} if trouble.repair else {}
                report.error = {"kind": trouble.kind, "message": str(trouble), **repair}
            except Cancelled:
                raise
            except HypError as error:
                report.error = error.as_json()
            except Exception as error:
                report.error = {"kind": "delivery_failed", "message": f"{type(error).__name__}: {error}"}
            span.set(streams=len(report.streams), row_count=sum(stream.rows for stream in report.streams))
            if report.error:
                # A sink that could not even be opened: each of its streams has failed with it.
                told = {stream.key for stream in report.streams}
                untold = [each for each in due if each.key not in told]
                report.streams += [
                    StreamReport(each.key, each.watermark or 0, each.watermark or 0, error=report.error)
                    for each in untold
                ]
                telemetry.count("hyp_sink_export_failures_total", 1, status="failed", sink=name)
            self._tell_lag(name)
            span.status({"ok": "ok", "partial": "degraded", "held": "skipped"}.get(report.status, "failed"))  # type: ignore[arg-type]
        return report

    def _tell_lag(self, name: str) -> None:
        """What each stream of the sink has still to deliver, however the round went."""
        if not telemetry.is_on():
            return
        # A lake that cannot be counted fails whoever reads it for its rows, not whoever measures.
        with suppress(HypError, OSError):
            for each in status.report(self.home, self.config, self.opened.store, datetime.now(UTC), [name]):
                key = each.standing.key
                telemetry.gauge(
                    "hyp_sink_lag_rows", each.lag_rows, sink=name, hyp_dataset=key.dataset, source=key.source
                )

    async def _tick(self, name: str, report: SinkReport, due: list[Standing]) -> None:
        """`due` becomes the streams that have something to do."""
        for standing in standings(self.home, self.config, self.opened.store, [name]):
            if standing.trouble:
                raise standing.trouble
            if not standing.is_settled:
                if self.terms.patient and (asked := _asked_for_time(standing)):
                    report.streams.append(asked)
                else:
                    due.append(standing)
            elif not standing.removed:
                report.streams.append(StreamReport(standing.key, standing.watermark, standing.watermark))
        if not due:
            return
        async with self.made(name) as sink:
            destination = await self._reach(sink, due)
            rounds = Round(
                self.home, self.opened.store, self.opened.identity, self.lake, self.clearance, sink, destination,
                self._declared(), self.terms.max_wait, self.terms.budget, asyncio.Semaphore(_STREAMS_AT_ONCE),
                lambda rows, sent: self.on_rows(name, rows, sent),
            )  # fmt: skip
            report.streams += await _all_of(self._locked(rounds, standing.key) for standing in due)

    @asynccontextmanager
    async def made(self, name: str) -> AsyncIterator[Sink]:
        """The sink of that name, not opened yet."""
        kind = configured.kind_of(self.config.sinks[name].kind)
        settings = configured.settings(self.home, self.config, self.opened.identity, name, self.on_spark)
        sink = guarded.made(kind, settings)
        try:
            yield sink
        finally:
            await sink.close()

    async def _reach(self, sink: Sink, due: Sequence[Standing]) -> Destination:
        """A destination that is not there fails all its streams alike, and each remembers it."""
        patience = Patience(self.terms.max_wait, max(each.stream.attempts if each.stream else 0 for each in due))
        try:
            return await patience.until_answered(sink.open)
        except (Denied, GaveUp, HypError) as trouble:
            wait = trouble.retry_after if isinstance(trouble, GaveUp) else None
            retry_at = waiting.time_after(wait) if wait else None
            keys = [each.key for each in due]
            bearings.remember_failure(
                self.opened.store, keys, self._declared(), str(trouble), retry_at, patience.failures
            )
            raise

    def _declared(self) -> dict[tuple[str, str], str | None]:
        found: dict[tuple[str, str], str | None] = {}
        for name, declared in self.config.sinks.items():
            address: str | None = None
            with suppress(HypError):
                address = configured.address(self.home, self.config, self.opened.identity, name)
            found |= {(name, dataset): address for dataset in declared.datasets}
        return found

    async def _locked(self, rounds: Round, key: StreamKey) -> StreamReport:
        """Another round may be at work on the stream: it is waited for, as long as this one may wait."""
        try:
            lock = await locks.waited_for(self.home, key, self.terms.max_wait)
            if lock is None:
                return StreamReport(key, error=locks.busy(self.home, key).as_json())
            with lock:
                return await rounds.run(key)
        except Cancelled:
            raise
        except HypError as error:
            # Not even the failure could be written down: the disk is full, or the state is not there.
            return StreamReport(key, error=error.as_json())

    @property
    def home(self) -> Home:
        return self.opened.home
