"""A sink that never answers has given no answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hypaware.export import guarded
from hypaware.export.ranges import chunk_of
from hypaware.export.sink import Chunk, SinkSettings, Unreachable
from hypaware.home import Home
from hypaware.state.stream_key import StreamKey
from hypaware.testing.destination import FolderSink


class _Mute(FolderSink):
    async def has_chunk(self, chunk: Chunk) -> bool | None:
        await asyncio.Event().wait()
        return True


def _sink(tmp_path: Path) -> guarded.Guarded:
    settings = SinkSettings("here", Home(tmp_path), {"folder": str(tmp_path)}, ("d",), "gw-1", "life")
    return guarded.Guarded(_Mute(settings), "here")


CHUNK = chunk_of(StreamKey("here", "d", "s"), "gw-1", "life", 0, 1)


def test_silence_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_CALL_TIMEOUT", 0.01)
    with pytest.raises(Unreachable, match="TimeoutError"):
        asyncio.run(_sink(tmp_path).has_chunk(CHUNK))


@pytest.mark.hazard(29)
def test_a_stop_ends_it_at_once(tmp_path: Path) -> None:
    async def stopped() -> None:
        asked = asyncio.create_task(_sink(tmp_path).has_chunk(CHUNK))
        await asyncio.sleep(0)
        asked.cancel()
        await asked

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped())
