"""The output formats of a query. Each renders an Arrow schema and batches as a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hypaware.errors import UsageError
from hypaware.nearest import nearest

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "jsonl", "csv", "markdown", "arrow")
FOR_EYES = ("table", "markdown")


def render(
    name: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    width: int | None = None,
    color: bool = False,
) -> Iterator[bytes]:
    """Render the batches in the named format. `width` and `color` are those of the terminal, if there is one."""
    match name:
        case "table":
            from hypaware.query import table_format

            return table_format.lines(schema, batches, table_format.Look(width, color))
        case "json":
            from hypaware.query import json_format

            return json_format.array(schema, batches)
        case "jsonl":
            from hypaware.query import json_format

            return json_format.lines(schema, batches)
        case "csv":
            from hypaware.query import csv_format

            return csv_format.lines(schema, batches, on_terminal=width is not None)
        case "markdown":
            from hypaware.query import markdown_format

            return markdown_format.lines(schema, batches)
        case "arrow":
            return _arrow_stream(schema, batches)
    raise UsageError(f"unknown format {name!r}.{nearest(name, FORMATS)}")


def _arrow_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Render the batches in the Arrow IPC streaming format."""
    import pyarrow as pa

    sink = _Sink()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


class _Sink:
    """A file object whose content can be taken between writes."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: pa.Buffer) -> None:
        self._written.append(bytes(data))

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def take(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written
