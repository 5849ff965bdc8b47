"""Asking somebody who may not answer: whoever looks at everything cannot wait long for one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Its result, or what it raised; TimeoutError where it takes longer, and it is left to itself."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as trouble:
            answers.put((None, trouble))

    threading.Thread(target=run, name="asking", daemon=True).start()
    try:
        answer, trouble = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if trouble is not None:
        raise trouble
    return answer  # type: ignore[return-value]
