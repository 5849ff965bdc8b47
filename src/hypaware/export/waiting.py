"""How long to wait before the next try, and how much waiting a round may do.

A positive Retry-After is obeyed; a destination that only says "busy" gets 30, 60, 120, 300 s; one that does not answer
gets 1, 2, 4 … 300 s, the first of them at once. `hyp export` waits itself as long as its `--max-wait` goes; what is
longer is written down, and the daemon comes back for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypaware.export.sink import Busy, Unreachable

T = TypeVar("T")

_BUSY_LADDER = (30.0, 60.0, 120.0, 300.0)
_LONGEST = 300.0
# A destination that wants to be left alone for years has made a mistake: it is asked again tomorrow.
_LONGEST_ASKED = 86_400.0
# A round does not try longer than this against a destination that is silent; the next one does.
_QUICK_TRIES = 3


class GaveUp(Exception):
    """The round ends here for this stream; `retry_after` says when another try makes sense."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None, repair: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.repair = repair


def after_busy(asked: float | None, failures: int) -> float:
    if asked is not None and asked > 0:
        return min(asked, _LONGEST_ASKED)
    return _BUSY_LADDER[min(failures, len(_BUSY_LADDER) - 1)]


def after_silence(failures: int) -> float:
    return min(2.0 ** min(failures, 10), _LONGEST)


def time_after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@dataclass
class Patience:
    """What is left of the waiting that a round may do for one stream."""

    seconds: float
    failures: int = 0
    """In a row, this round's and those before it."""

    async def until_answered(self, work: Callable[[], Awaitable[T]]) -> T:
        """Tries until there is an answer, or it would take too long. A cancellation ends every wait at once."""
        silences = 0
        while True:
            try:
                answer = await work()
            except Busy as busy:
                pause = after_busy(busy.after, self.failures)
                self.failures += 1
                if pause > self.seconds:
                    raise GaveUp("destination_busy", f"the destination asks to wait: {busy}", pause) from None
            except Unreachable as silence:
                pause, silences = after_silence(self.failures), silences + 1
                self.failures += 1
                if silences >= _QUICK_TRIES or pause > self.seconds:
                    raise GaveUp("destination_unreachable", str(silence), pause) from None
            else:
                self.failures = 0
                return answer
            self.seconds -= pause
            await asyncio.sleep(pause)
