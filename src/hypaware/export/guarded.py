"""Wrap a sink so that every failure is one of the exceptions of the sink interface."""

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

# Far longer than any timeout of a sink: a sink without timeouts must not block its stream forever.
_CALL_TIMEOUT = 900.0
_CALL_ERRORS = (Busy, Unreachable, Denied)
_SHIP_ERRORS = (*_CALL_ERRORS, Refused, Overlap)


def made(kind: SinkType, settings: SinkSettings) -> Sink:
    """Create a sink of that kind and wrap it. Raises HypError (`sink_failed`) if the plugin fails."""
    try:
        return Guarded(kind.make(settings), settings.name)
    except HypError:
        raise
    except Exception as error:
        raise _broken(settings.name, "could not be created", error) from error


class Guarded(Sink):
    """A sink that raises only the exceptions of the interface.

    Any other exception says nothing about the chunk, so it counts as Unreachable; so does a call that never returns. A
    sink that fails to encode cannot recover: that is a terminal error of this sink and does not affect others.
    """

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
        return await _normalise_errors(self._sink.open(), _CALL_ERRORS)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        return await _normalise_errors(self._sink.has_chunk(chunk), _CALL_ERRORS)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        return await _normalise_errors(self._sink.coverage(stream, gateway_id, incarnation), _CALL_ERRORS)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        return await _normalise_errors(self._sink.ship(chunk, payload, acked_to), _SHIP_ERRORS)

    def encode(self, rows: pa.Table) -> Payload:
        try:
            return self._sink.encode(rows)
        except HypError:
            raise
        except Exception as error:
            raise _broken(self._name, f"could not encode {len(rows)} rows", error) from error

    async def close(self) -> None:
        """Close the sink. A failure is only logged: delivered rows stay delivered."""
        try:
            await self._sink.close()
        except Exception as error:
            telemetry.event("sink.close_failed", component="export", sink=self._name, error=str(error))


async def _normalise_errors(call: Awaitable[T], expected: tuple[type[Exception], ...]) -> T:
    try:
        async with asyncio.timeout(_CALL_TIMEOUT):
            return await call
    except expected:
        raise
    except HypError:
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # This task was not cancelled: something inside the sink cancelled itself.
        raise Unreachable("the sink cancelled its own request") from cancelled
    except Exception as error:
        raise Unreachable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error


def _broken(name: str, problem: str, error: Exception) -> HypError:
    return HypError(f"the sink {name} {problem}: {type(error).__name__}: {error}", kind="sink_failed")
