"""The output formats of a query. Each renders an Arrow schema and batches as a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hypaware.errors import UsageError
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "jsonl", "csv", "markdown", "arrow")
TEXT_TABLES = ("table", "markdown")


def render(
    name: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    width: int | None = None,
    color: bool = False,
) -> Iterator[bytes]:
    """Render the batches in the named format. `width` and `color` are those of the terminal, if there is one."""
    if name == "arrow":
        return _arrow_stream(schema, batches)
    from hypaware.query import renderers

    match name:
        case "table":
            return renderers.render_table(schema, batches, renderers.TableStyle(width, color))
        case "json":
            return renderers.render_json(schema, batches)
        case "jsonl":
            return renderers.render_jsonl(schema, batches)
        case "csv":
            return renderers.render_csv(schema, batches, on_terminal=width is not None)
        case "markdown":
            return renderers.render_markdown(schema, batches)
    raise UsageError(f"unknown format {name!r}.{did_you_mean(name, FORMATS)}")


def _arrow_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Render the batches in the Arrow IPC streaming format."""
    import pyarrow as pa

    sink = _ByteBuffer()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


class _ByteBuffer:
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
