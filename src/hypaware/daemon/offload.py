"""Run blocking calls outside the event loop.

Each call gets its own daemon thread, which does not delay the end of the process. The loop's executor would: a shutdown
must not hang on an engine that is just starting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def on_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Return a future of the call's result. Cancelling the future does not stop the call; its result is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        # A closed loop raises RuntimeError; nothing waits for the result then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, *outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
