"""A destination in a folder that misbehaves when it is told to: the smallest real sink, and the one to try drivers on.

`<folder>/<chunk id>.json` holds a chunk that arrived, created once. Faults are files too, so that they outlive a
killed process: each `fault-<kind>` holds how often it still happens.

- `lose-answer`  the chunk is stored, the answer is not heard
- `cut`          the connection ends before anything is stored
- `busy`         it asks for patience
- `refuse`       message ids that it does not take, one a line; a chunk with one of them is refused as a whole
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
    """The destination itself, as its owner sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def arrived(self) -> list[str]:
        """The message ids of all rows that it holds, in the order of arrival, each as often as it is there."""
        return [message for chunk in self.chunks() for message in chunk["messages"]]

    def chunks(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_bytes()) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda chunk: (chunk["incarnation"], chunk["source"], chunk["after"]))

    def set_fault(self, kind: str, value: str | int) -> None:
        (self.folder / f"fault-{kind}").write_text(str(value))

    def clear_faults(self) -> None:
        for path in self.folder.glob("fault-*"):
            path.unlink()

    def refused(self) -> set[str]:
        path = self.folder / "fault-refuse"
        return set(path.read_text().split("\n")) if path.exists() else set()

    def happens(self, kind: str) -> bool:
        """Once less from now on."""
        path = self.folder / f"fault-{kind}"
        left = int(path.read_text()) if path.exists() else 0
        if left:
            path.write_text(str(left - 1))
        return left > 0


class FolderSink(Sink):
    limits = Limits(rows=3, bytes=1 << 20)

    def __init__(self, settings: SinkSettings) -> None:
        self._where = FolderDestination(Path(settings.options["folder"]))
        self._can_be_asked = bool(settings.options.get("can_be_asked", True))
        self._name = str(settings.options.get("calls_itself", "")) or None
        self._address = address(settings)

    async def open(self) -> Destination:
        return Destination(self._address, self._name)

    async def landed(self, chunk: Chunk) -> bool | None:
        return self._path(chunk).exists() if self._can_be_asked else None

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        if not self._can_be_asked:
            return None
        last, holes = 0, []
        for held in self._where.chunks():
            whose = (held["dataset"], held["source"], held["gateway"], held["incarnation"])
            if whose == (stream.dataset, stream.source, gateway_id, incarnation):
                if held["after"] > last:
                    holes.append((last, held["after"]))
                last = max(last, held["last"])
        return Delivered(last, tuple(holes))

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        if self._where.happens("busy"):
            raise Busy("asked to wait", 0.001)
        if self._where.happens("cut"):
            raise Unreachable("the connection was cut")
        messages: list[str] = payload.table.column("message_id").to_pylist()
        if not self._path(chunk).exists():
            if bad := self._where.refused() & set(messages):
                raise Refused(f"{sorted(bad)[0]} is not taken")
            self._store(chunk, messages)
        if self._where.happens("lose-answer"):
            raise Unreachable("the answer was lost")
        return len(messages)

    async def close(self) -> None:
        return None

    def _path(self, chunk: Chunk) -> Path:
        return self._where.folder / f"{chunk.id}.json"

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
            pass  # another round was quicker with the same chunk
        finally:
            written.unlink()


def address(settings: SinkSettings) -> str:
    return f"folder:{settings.options['folder']}"


FOLDER = SinkType("test-folder", "a folder that misbehaves when it is told to", address, FolderSink)
