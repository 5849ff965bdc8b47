"""Read the rows of data files, a few thousand at a time.

Importing pyarrow takes a tenth of a second, so it is imported when the first data file is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.home.storage import arrow_source
from hypaware.index.parts import ATTRIBUTE_MARKS, COLUMNS, Part, hash_part, make_part
from hypaware.model.datasets import SEQ

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1_024
# Filled in for columns that a file of another program lacks.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("gateway_id", "session_id", "message_id", "role", "part_type"), ""),
    **dict.fromkeys(("message_index", "message_created_at", "part_index"), 0),
}


class UnreadableFile(Exception):
    """A data file is missing or damaged."""


def read_parts(path: Path, first_group: int, *, with_text: bool) -> Iterator[tuple[list[Part], int]]:
    """Yield the parts of a data file from a row group on, and the number of row groups that are then read.

    The parts of one batch are in the order of their sequences. Rows without a sequence are left out.
    """
    import pyarrow as pa

    try:
        yield from _read_parts(path, first_group, with_text)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(f"{path} cannot be read: {error}") from error


def _read_parts(path: Path, first_group: int, with_text: bool) -> Iterator[tuple[list[Part], int]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(arrow_source(path), memory_map=False, pre_buffer=False) as file:
        present = set(file.schema_arrow.names)
        names = [name for name in (SEQ, *COLUMNS) if name in present]
        for group in range(first_group, file.num_row_groups):
            last = file.metadata.row_group(group).num_rows
            done = 0
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names, use_threads=False):
                done += batch.num_rows
                # A row group counts as read with its last batch.
                yield _to_parts(batch, with_text), group + (done >= last)
            if not last:
                yield [], group + 1


def _to_parts(batch: pa.RecordBatch, with_text: bool) -> list[Part]:
    present = set(batch.schema.names)
    columns = [
        _to_list(batch.column(name), name) if name in present else [_DEFAULTS.get(name)] * batch.num_rows
        for name in (SEQ, *COLUMNS)
    ]
    parts = [make_part(with_text, *values) for values in zip(*columns, strict=True) if values[0] is not None]
    for part in parts:
        part.hash = hash_part(part)
    parts.sort(key=lambda part: part.seq)
    return parts


def _has_mark(attributes: str) -> bool:
    for mark in ATTRIBUTE_MARKS:  # noqa: SIM110, `any` takes twice the time, and this is called for every row
        if mark in attributes:
            return True
    return False


def _to_list(column: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    if name == "message_created_at":
        column = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if name == "attributes":
        # Most attributes hold nothing that is indexed. Python finds that out in a fifth of the time of pyarrow.
        return [text if text is not None and _has_mark(text) else None for text in values]
    if name in _DEFAULTS and column.null_count:
        values = [_DEFAULTS[name] if value is None else value for value in values]
    return values
