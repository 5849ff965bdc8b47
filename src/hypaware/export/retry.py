"""Call a sink and retry: how long to wait before the next attempt, and how much waiting a round may do.

A positive Retry-After is obeyed. A destination that only reports "busy" is retried after 30, 60, 120, 300 s; one that
does not respond after 1, 2, 4 … 300 s. `hyp export` itself waits up to `--max-wait`; a longer delay is stored with the
stream, and the daemon retries then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from hypaware.errors import HypError
from hypaware.export.sink import DestinationBusy, DestinationDenied, DestinationUnreachable

T = TypeVar("T")

# Far longer than any timeout of a sink: a sink without timeouts must not block its stream forever.
_CALL_TIMEOUT = 900.0
_BUSY_DELAYS = (30.0, 60.0, 120.0, 300.0)
# A destination that asks for a delay of years is wrong: retry it the next day.
_LONGEST_RETRY_AFTER = 86_400.0
# Attempts per round at a destination that does not respond; the next round tries again.
_ATTEMPTS_PER_ROUND = 3


class DeliveryStopped(Exception):
    """Ends the round of one stream. `retry_after` says in how many seconds another attempt makes sense."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None, repair: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.repair = repair


class StreamHeld(Exception):
    """Only the user can decide how the stream continues. `why` is one of the kinds of holds in `state.streams`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


@asynccontextmanager
async def limit_call(*expected: type[Exception], seconds: float = _CALL_TIMEOUT) -> AsyncIterator[None]:
    """Guard one call of a sink: it raises only `expected`, DestinationBusy, -Denied or -Unreachable, and HypError.

    Any other exception of a plugin says nothing about the chunk, so it counts as DestinationUnreachable; so does a call
    that does not return within `seconds`. Guard nothing but the call: our own errors are not those of the destination.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except expected:
        raise
    except (DestinationBusy, DestinationDenied, DestinationUnreachable, HypError):
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # This task was not cancelled: something inside the sink cancelled itself.
        raise DestinationUnreachable("the sink cancelled its own request") from cancelled
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DestinationUnreachable(reason) from error


def busy_delay(requested: float | None, failures: int) -> float:
    if requested is not None and requested > 0:
        return min(requested, _LONGEST_RETRY_AFTER)
    return _BUSY_DELAYS[min(failures, len(_BUSY_DELAYS) - 1)]


def backoff_delay(failures: int) -> float:
    return min(2.0 ** min(failures, 10), 300.0)


def retry_time(error: Exception) -> datetime | None:
    """Return the time from which another attempt makes sense, if the error names one."""
    wait = error.retry_after if isinstance(error, DeliveryStopped) else None
    return datetime.now(UTC) + timedelta(seconds=wait) if wait else None


def describe_error(error: Exception, kind: str) -> dict[str, Any]:
    """Return the error for a report; `kind` is that of an error of a plugin."""
    if isinstance(error, HypError):
        return error.as_json()
    if isinstance(error, DestinationDenied | DeliveryStopped):
        repair = {"repair": [error.repair]} if error.repair else {}
        return {"kind": error.kind, "message": str(error), **repair}
    return {"kind": kind, "message": f"{type(error).__name__}: {error}"}


@dataclass
class RetryBudget:
    """The waiting time that a round has left for one stream."""

    seconds: float
    failures: int = 0
    """Consecutive failures, those of earlier rounds included."""

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the destination responds. Raises DeliveryStopped if the next delay exceeds the time left."""
        silences = 0
        while True:
            try:
                result = await call()
            except DestinationBusy as busy:
                delay = busy_delay(busy.after, self.failures)
                self.failures += 1
                if delay > self.seconds:
                    raise DeliveryStopped("destination_busy", f"the destination asks to wait: {busy}", delay) from None
            except DestinationUnreachable as silence:
                delay, silences = backoff_delay(self.failures), silences + 1
                self.failures += 1
                if silences >= _ATTEMPTS_PER_ROUND or delay > self.seconds:
                    raise DeliveryStopped("destination_unreachable", str(silence), delay) from None
            else:
                self.failures = 0
                return result
            self.seconds -= delay
            await asyncio.sleep(delay)
