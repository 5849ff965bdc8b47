"""Taking rows out of files that were just built, duplicates above all: the same rows, less some, under a new name.

Nothing names the files yet. A file that holds no such row stays as it is; one that holds nothing else goes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.lake import row_groups, settlements
from hypaware.lake.build import KEY_BYTES, Built
from hypaware.lake.partitions import BuiltFile, Place, finish, parquet_writer
from hypaware.model import datasets
from hypaware.model.datasets import SEQ


@dataclass(frozen=True)
class ThinTask:
    dataset: str
    built: Built
    place: Place
    drop: frozenset[int]
    settles: Mapping[int, int] = field(default_factory=dict)
    """Those of the dropped rows that settle a row of the lake; they are kept for it."""
    settlement: Path | None = None
    """Where."""

    def run(self) -> Built:
        if self.settles:
            assert self.settlement is not None
            settlements.write(self.settlement, [self._settling(file) for file in self.built.files], self.settles)
        files = [self._thinned(file) for file in self.built.files]
        kept = without_keys(self.built, self.drop)
        return replace(kept, files=[file for file in files if file is not None], withdrawn=[])

    def _thinned(self, file: BuiltFile) -> BuiltFile | None:
        with pq.ParquetFile(file.path) as held:
            seqs = held.read([SEQ]).column(SEQ)
            kept = pc.filter(seqs, self._wanted(seqs))
            if len(kept) == file.rows:
                return file
            thinned = self._rewrite(file, held, kept) if len(kept) else None
        file.path.unlink(missing_ok=True)
        return thinned

    def _settling(self, file: BuiltFile) -> pa.Table:
        rows = pq.read_table(file.path, partitioning=None)
        return rows.filter(pc.is_in(rows.column(SEQ), value_set=pa.array(self.settles, pa.int64())))

    def _wanted(self, seqs: Any) -> Any:
        unwanted = pc.is_in(seqs, value_set=pa.array(self.drop, pa.int64()))
        for taken_back in self.built.withdrawn:
            inside = pc.and_(pc.greater_equal(seqs, taken_back.start), pc.less(seqs, taken_back.stop))
            unwanted = pc.or_(unwanted, inside)
        return pc.invert(unwanted)

    def _rewrite(self, file: BuiltFile, held: pq.ParquetFile, kept: Any) -> BuiltFile:
        path = self.place.new_file(datasets.get(self.dataset), file.source, file.day)
        group_bytes = []
        with parquet_writer(path, held.schema_arrow.remove_metadata()) as writer:
            for group in range(held.num_row_groups):
                rows = held.read_row_group(group)
                left = rows.filter(self._wanted(rows.column(SEQ)))
                if left.num_rows:
                    writer.write_table(left, row_group_size=left.num_rows)
                    group_bytes.append(left.nbytes)
            writer.add_key_value_metadata(row_groups.footer_note(group_bytes))
        finish(path)
        return replace(file, path=path, rows=len(kept), bytes=path.stat().st_size, max_seq=pc.max(kept).as_py())


def without_keys(built: Built, drop: Container[int]) -> Built:
    """What the driver knows of the rows, without those that were dropped."""
    thinned = replace(built, seqs=built.seqs[:0], keys=bytearray(), meetings=built.meetings.without(drop))
    packed = bytes(built.keys)
    for place, seq in enumerate(built.seqs):
        if seq not in drop:
            thinned.seqs.append(seq)
            thinned.keys += packed[place * KEY_BYTES : (place + 1) * KEY_BYTES]
    return thinned
