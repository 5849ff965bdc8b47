"""The smallest real sink: a destination in a folder, with faults on request. Use it to test drivers.

`<folder>/<chunk id>.json` holds a stored chunk and is created once. `<folder>/faults` holds the faults to inject, as in
`fault_injection`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    Destination,
    Payload,
    Sink,
    SinkSettings,
    SinkType,
    StreamCoverage,
    TablePayload,
)
from hypaware.state.streams import StreamKey
from hypaware.testing.fault_injection import Faults


class FolderDestination:
    """The destination as its owner sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults = Faults(folder / "faults")

    def arrived(self) -> list[str]:
        """Return the message ids of all stored rows in order; a duplicate row is listed twice."""
        return [message for chunk in self.chunks() for message in chunk["messages"]]

    def chunks(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_bytes()) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda chunk: (chunk["incarnation"], chunk["source"], chunk["after"]))


class FolderSink(Sink):
    limits = ChunkLimits(rows=3, bytes=1 << 20)

    def __init__(self, settings: SinkSettings) -> None:
        self._destination = FolderDestination(Path(settings.options["folder"]))
        self._can_be_queried = bool(settings.options.get("can_be_queried", True))
        self._found = Destination(folder_address(settings), str(settings.options.get("destination_id", "")) or None)

    async def open(self) -> Destination:
        return self._found

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        return self._path(chunk).exists() if self._can_be_queried else None

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        if not self._can_be_queried:
            return None
        owner = (stream.dataset, stream.source, gateway_id, incarnation)
        return StreamCoverage.from_ranges(
            (each["after"], each["last"])
            for each in self._destination.chunks()
            if (each["dataset"], each["source"], each["gateway"], each["incarnation"]) == owner
        )

    def encode(self, rows: pa.Table) -> Payload:
        return TablePayload(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, TablePayload)
        messages: list[str] = payload.table.column("message_id").to_pylist()
        with self._destination.faults.around_send():
            if not self._path(chunk).exists():
                self._destination.faults.refuse(messages)
                self._store(chunk, messages)
        return len(messages)

    async def close(self) -> None:
        return None

    def _path(self, chunk: Chunk) -> Path:
        return self._destination.folder / f"{chunk.id}.json"

    def _store(self, chunk: Chunk, messages: list[str]) -> None:
        body = {
            "gateway": chunk.gateway_id,
            "incarnation": chunk.incarnation,
            "dataset": chunk.stream.dataset,
            "source": chunk.stream.source,
            "after": chunk.after,
            "last": chunk.last,
            "messages": messages,
        }
        written = self._path(chunk).with_suffix(f".{os.getpid()}.tmp")
        written.write_bytes(json.dumps(body).encode())
        try:
            os.link(written, self._path(chunk))
        except FileExistsError:
            pass  # another round stored the same chunk first
        finally:
            written.unlink()


def folder_address(settings: SinkSettings) -> str:
    return f"folder:{settings.options['folder']}"


FOLDER = SinkType("test-folder", "a folder with faults on request", folder_address, FolderSink)
