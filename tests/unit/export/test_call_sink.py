"""Calls of a sink that never returns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from hypaware.export.retry import limit_call
from hypaware.export.rows import make_chunk
from hypaware.export.sink import Chunk, DestinationUnreachable, SinkSettings
from hypaware.home import Home
from hypaware.state.streams import StreamKey
from hypaware.testing.folder_sink import FolderSink
from tests.support.processes import PATIENCE


class _SilentSink(FolderSink):
    async def has_chunk(self, chunk: Chunk) -> bool | None:
        await asyncio.Event().wait()
        return True


def _call(tmp_path: Path, seconds: float = PATIENCE) -> Coroutine[Any, Any, bool | None]:
    settings = SinkSettings("here", Home(tmp_path), {"folder": str(tmp_path)}, ("d",), "gw-1", "life")
    return limit_call(seconds=seconds)(_SilentSink(settings).has_chunk)(CHUNK)


CHUNK = make_chunk(StreamKey("here", "d", "s"), "gw-1", "life", 0, 1)


def test_a_call_that_never_returns_times_out(tmp_path: Path) -> None:
    with pytest.raises(DestinationUnreachable, match="TimeoutError"):
        asyncio.run(_call(tmp_path, seconds=0.01))


@pytest.mark.hazard(29)
def test_a_cancellation_ends_a_call_immediately(tmp_path: Path) -> None:
    async def cancel_call() -> None:
        call = asyncio.create_task(_call(tmp_path))
        await asyncio.sleep(0)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_call())
