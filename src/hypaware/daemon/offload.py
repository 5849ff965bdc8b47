"""Work that blocks, beside the event loop.

Each piece has a thread of its own that nobody waits for at the end of the process: the loop's executor would, and a
shutdown must not hang on an engine that is just starting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def on_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Its result or its error; work whose future was cancelled goes on unheard."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
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
        # The loop may be closed by now: then there is nobody left to hear it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
