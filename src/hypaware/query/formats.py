"""The output of a query: its formats, which render Arrow batches as a stream of bytes, and its file.

A file is written all or nothing: the result goes to a hidden temporary file in the same folder, which replaces the
target at the end. A device or a named pipe is written directly. Of a symbolic link, the target is replaced.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.errors import HypError, UsageError
from hypaware.home import durable_files
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "jsonl", "csv", "markdown", "arrow")
TEXT_TABLES = ("table", "markdown")
_SUFFIXES = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".md": "markdown", ".arrow": "arrow",
}  # fmt: skip


def format_of_file(path: Path) -> str:
    """Return the format that the name of a file implies; `table` if it implies none."""
    return _SUFFIXES.get(path.suffix.lower(), "table")


def render(
    name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, width: int | None = None, color: bool = False
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

    sink = io.BytesIO()

    def take() -> bytes:
        written = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return written

    with pa.ipc.new_stream(sink, schema) as writer:
        yield take()
        for batch in batches:
            writer.write_batch(batch)
            yield take()
    yield take()


@contextmanager
def open_output(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a write function. The file is replaced only if the block ends without an error."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise UsageError(f"--output {path} is a folder")
    if not target.parent.is_dir():
        raise UsageError(f"--output {path}: folder {target.parent} does not exist")
    try:
        if mode is None or stat.S_ISREG(mode):
            with durable_files.replace_atomically(target, 0o666) as fd:
                if mode is not None:
                    os.fchmod(fd, stat.S_IMODE(mode))
                yield partial(durable_files.write_all, fd)
        else:
            with target.open("wb") as file:
                yield lambda chunk: durable_files.write_all(file.fileno(), chunk)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HypError(f"cannot write {path}: {reason}", kind="output_failed") from error
