"""A sink whose trouble speaks the contract's words, whatever it is made of.

What a sink raises beside them says nothing about the chunk, so it counts as no answer, and so does silence without
end. One that fails to encode has failed for good: that is an error of its own, which holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from hypaware import telemetry
from hypaware.errors import HypError
from hypaware.export.sink import Busy, Chunk, Delivered, Denied, Destination, Overlap, Refused, Sink, Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.payload import Payload
    from hypaware.export.sink import Limits, SinkSettings, SinkType
    from hypaware.state.stream_key import StreamKey

T = TypeVar("T")

# Far longer than any sink's own patience: one that has none must not keep its stream for ever.
_LONGEST_SILENCE = 900.0
_ANSWERS = (Busy, Unreachable, Denied)
_OF_A_CHUNK = (*_ANSWERS, Refused, Overlap)


def made(kind: SinkType, settings: SinkSettings) -> Sink:
    try:
        return Guarded(kind.make(settings), settings.name)
    except HypError:
        raise
    except Exception as error:
        raise _broken(settings.name, "could not be made", error) from error


class Guarded(Sink):
    def __init__(self, sink: Sink, name: str) -> None:
        self._sink = sink
        self._name = name

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        return self._sink.limits

    @property
    def wants_sequence(self) -> bool:  # type: ignore[override]
        return self._sink.wants_sequence

    async def open(self) -> Destination:
        return await _answered(self._sink.open(), _ANSWERS)

    async def landed(self, chunk: Chunk) -> bool | None:
        return await _answered(self._sink.landed(chunk), _ANSWERS)

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        return await _answered(self._sink.delivered(stream, gateway_id, incarnation), _ANSWERS)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        return await _answered(self._sink.ship(chunk, payload, acked_to), _OF_A_CHUNK)

    def encode(self, rows: pa.Table) -> Payload:
        try:
            return self._sink.encode(rows)
        except HypError:
            raise
        except Exception as error:
            raise _broken(self._name, f"could not encode {len(rows)} rows", error) from error

    async def close(self) -> None:
        """What is delivered stays delivered, however the farewell goes."""
        try:
            await self._sink.close()
        except Exception as error:
            telemetry.event("sink.close_failed", component="export", sink=self._name, error=str(error))


async def _answered(work: Awaitable[T], answers: tuple[type[Exception], ...]) -> T:
    try:
        async with asyncio.timeout(_LONGEST_SILENCE):
            return await work
    except answers:
        raise
    except HypError:
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # It was not us who were cancelled: something inside the sink gave up.
        raise Unreachable("the sink broke off by itself") from cancelled
    except Exception as error:
        raise Unreachable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error


def _broken(name: str, what: str, error: Exception) -> HypError:
    return HypError(f"the sink {name} {what}: {type(error).__name__}: {error}", kind="sink_failed")
