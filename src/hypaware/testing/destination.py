"""The smallest real sink: a destination in a folder, with faults on request. Use it to test drivers.

`<folder>/<chunk id>.json` holds a stored chunk and is created once. Faults are files too, so that they survive a killed
process: each `fault-<kind>` holds how often the fault still occurs.

- `lose-answer`  the chunk is stored, the response is lost
- `cut`          the connection is cut before anything is stored
- `busy`         the destination asks to wait
- `refuse`       message ids to refuse, one per line; a chunk with one of them is refused as a whole
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.export.payload import Rows
from hypaware.export.sink import (
    Busy,
    Chunk,
    Delivered,
    Destination,
    Limits,
    Refused,
    Sink,
    SinkSettings,
    SinkType,
    Unreachable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.payload import Payload
    from hypaware.state.stream_key import StreamKey


class FolderDestination:
    """The destination as its owner sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def arrived(self) -> list[str]:
        """Return the message ids of all stored rows in order; a duplicate row is listed twice."""
        return [message for chunk in self.chunks() for message in chunk["messages"]]

    def chunks(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_bytes()) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda chunk: (chunk["incarnation"], chunk["source"], chunk["after"]))

    def set_fault(self, kind: str, value: str | int) -> None:
        (self.folder / f"fault-{kind}").write_text(str(value))

    def clear_faults(self) -> None:
        for path in self.folder.glob("fault-*"):
            path.unlink()

    def refused_ids(self) -> set[str]:
        path = self.folder / "fault-refuse"
        return set(path.read_text().split("\n")) if path.exists() else set()

    def occurs(self, kind: str) -> bool:
        """Return whether the fault occurs now, and count it down."""
        path = self.folder / f"fault-{kind}"
        left = int(path.read_text()) if path.exists() else 0
        if left:
            path.write_text(str(left - 1))
        return left > 0


class FolderSink(Sink):
    limits = Limits(rows=3, bytes=1 << 20)

    def __init__(self, settings: SinkSettings) -> None:
        self._destination = FolderDestination(Path(settings.options["folder"]))
        self._can_be_asked = bool(settings.options.get("can_be_asked", True))
        self._name = str(settings.options.get("calls_itself", "")) or None
        self._address = address(settings)

    async def open(self) -> Destination:
        return Destination(self._address, self._name)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        return self._path(chunk).exists() if self._can_be_asked else None

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        if not self._can_be_asked:
            return None
        last, holes = 0, []
        for stored in self._destination.chunks():
            owner = (stored["dataset"], stored["source"], stored["gateway"], stored["incarnation"])
            if owner == (stream.dataset, stream.source, gateway_id, incarnation):
                if stored["after"] > last:
                    holes.append((last, stored["after"]))
                last = max(last, stored["last"])
        return Delivered(last, tuple(holes))

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        if self._destination.occurs("busy"):
            raise Busy("asked to wait", 0.001)
        if self._destination.occurs("cut"):
            raise Unreachable("the connection was cut")
        messages: list[str] = payload.table.column("message_id").to_pylist()
        if not self._path(chunk).exists():
            if bad := self._destination.refused_ids() & set(messages):
                raise Refused(f"{min(bad)} is refused")
            self._store(chunk, messages)
        if self._destination.occurs("lose-answer"):
            raise Unreachable("the response was lost")
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


def address(settings: SinkSettings) -> str:
    return f"folder:{settings.options['folder']}"


FOLDER = SinkType("test-folder", "a folder with faults on request", address, FolderSink)
