"""Call a function that may hang, with a timeout."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the call's result or raise its exception. Raise TimeoutError if it takes longer; its thread continues."""
    outcomes: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((call(), None))
        except BaseException as exception:
            outcomes.put((None, exception))

    threading.Thread(target=run, name="timeout", daemon=True).start()
    try:
        result, exception = outcomes.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if exception is not None:
        raise exception
    return result  # type: ignore[return-value]
