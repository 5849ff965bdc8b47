"""A small lake for tests of delivery: a folder with one Arrow file per commit, each row with its sequence.

It supports commits, compaction and purge like a real lake and uses the real state, but needs neither Spark nor Iceberg.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.home import durable_files
from hypaware.lake.build import table_from_json_lines
from hypaware.lake.read import RowPage
from hypaware.lake.schema import file_schema, table_columns
from hypaware.model import canonical, datasets
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, coerce_row
from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes
from hypaware.state.flushes import FlushOutcome
from hypaware.state.home_opener import OpenHome

DATASET = "ai_gateway_messages"


def sample_row(number: int, source: str, text: str = "text") -> dict[str, object]:
    """Return a valid row; the number determines its identity (`part_id`)."""
    at = f"2026-11-{1 + number // 86_400 % 28:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    return {
        "session_id": "session-1", "provider": "anthropic", "client_name": source, "conversation_source": source,
        "conversation_started_at": "2026-11-01T00:00:00Z", "message_id": f"message-{number}", "message_index": number,
        "message_created_at": at, "role": "user", "part_index": 0, "part_type": "text",
        "content_text": f"{text} {number}", "attributes": {"n": number, "big": 2**60},
    }  # fmt: skip


class SampleLake:
    def __init__(self, folder: Path, page_rows: int = 7) -> None:
        self._folder = folder
        self._page_rows = page_rows
        folder.mkdir(parents=True, exist_ok=True)

    def commit(self, opened: OpenHome, rows: Sequence[dict[str, object]]) -> None:
        """Commit rows of any sources in this order, as one flush: reserve, write, record."""
        dataset = datasets.get(DATASET)
        coerced = [coerce_row(dataset, row, opened.gateway_id) for row in rows]
        with opened.store.transaction() as connection:
            flush = flushes.reserve_range(connection, DATASET, len(rows))
        seqs = [flush.after + 1 + index for index in range(len(rows))]
        sources = [dataset.source_of(row) for row in coerced]
        empty = pa.array([""] * len(rows))
        internal = {SEQ: pa.array(seqs, pa.int64()), SOURCE: pa.array(sources), ROW_ID: empty, BATCH_ID: empty}
        lines = [canonical.serialize_row(row)[1] for row in coerced]
        self._write(f"{flush.after:020d}", table_from_json_lines(_file_schema(), lines, internal))
        high_water = dict(zip(sources, seqs, strict=True))
        with opened.store.transaction() as connection:
            flushes.record_flush(connection, flush, FlushOutcome(high_water, RowCounts(len(rows))))

    def compact(self) -> None:
        """Rewrite all rows into one file, in another order."""
        whole = self._whole()
        for path in self._files():
            path.unlink()
        self._write("compacted", whole.take(pc.sort_indices(whole, sort_keys=[(SEQ, "descending")])))

    def purge(self, message_ids: Collection[str]) -> None:
        for path in self._files():
            kept = _read_table(path)
            gone = pc.is_in(kept.column("message_id"), value_set=pa.array(list(message_ids), pa.string()))
            self._write(path.stem, kept.filter(pc.invert(gone)))

    def page(self, dataset: str, source: str, after: int, until: int, most: int | None = None) -> RowPage:
        found = self._between(source, after, until)
        rows = len(found) if most is None else min(most, self._page_rows)
        if len(found) <= rows:
            return RowPage(found, until, len(found))
        found = found.slice(0, rows)
        return RowPage(found, found.column(SEQ)[-1].as_py(), len(found))

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return len(self._between(source, after, last))

    def message_ids(self) -> list[str]:
        found: list[str] = self._whole().column("message_id").to_pylist()
        return found

    def _between(self, source: str, after: int, last: int) -> pa.Table:
        whole = self._whole()
        seq = whole.column(SEQ)
        inside = pc.and_(pc.and_(pc.greater(seq, after), pc.less_equal(seq, last)), pc.equal(whole[SOURCE], source))
        found = whole.filter(inside)
        public = [column.name for column in datasets.get(DATASET).columns]
        return found.take(pc.sort_indices(found, sort_keys=[(SEQ, "ascending")])).select([SEQ, *public])

    def _whole(self) -> pa.Table:
        return pa.concat_tables([_file_schema().empty_table(), *map(_read_table, self._files())])

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.arrow"))

    def _write(self, name: str, table: pa.Table) -> None:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        durable_files.write_atomic(self._folder / f"{name}.arrow", out.getvalue().to_pybytes())


def _file_schema() -> pa.Schema:
    dataset = datasets.get(DATASET)
    return file_schema(dataset, {column.name: number for number, column in enumerate(table_columns(dataset), 1)})


def _read_table(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        return reader.read_all()
