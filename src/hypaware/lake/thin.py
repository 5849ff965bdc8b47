"""Remove rows, mainly duplicates, from files that were just built.

No table references the files yet. A file that contains unwanted rows is rewritten under a new name, or removed if it
contains nothing else.
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
    output: Place
    drop: frozenset[int]
    settles: Mapping[int, int] = field(default_factory=dict)
    """Dropped native row → the live row of the lake that it settles."""
    settlement: Path | None = None
    """The file to store the settling rows in."""

    def run(self) -> Built:
        if self.settles:
            assert self.settlement is not None
            settlements.write(self.settlement, [self._read_settling(file) for file in self.built.files], self.settles)
        files = [self._drop(file) for file in self.built.files]
        kept = without_keys(self.built, self.drop)
        return replace(kept, files=[file for file in files if file is not None], withdrawn=[])

    def _drop(self, file: BuiltFile) -> BuiltFile | None:
        with pq.ParquetFile(file.path) as source_file:
            seqs = source_file.read([SEQ]).column(SEQ)
            kept = pc.filter(seqs, self._wanted(seqs))
            if len(kept) == file.rows:
                return file
            rewritten = self._rewrite(file, source_file, kept) if len(kept) else None
        file.path.unlink(missing_ok=True)
        return rewritten

    def _read_settling(self, file: BuiltFile) -> pa.Table:
        rows = pq.read_table(file.path, partitioning=None)
        return rows.filter(pc.is_in(rows.column(SEQ), value_set=pa.array(self.settles, pa.int64())))

    def _wanted(self, seqs: Any) -> Any:
        unwanted = pc.is_in(seqs, value_set=pa.array(self.drop, pa.int64()))
        for withdrawn in self.built.withdrawn:
            inside = pc.and_(pc.greater_equal(seqs, withdrawn.start), pc.less(seqs, withdrawn.stop))
            unwanted = pc.or_(unwanted, inside)
        return pc.invert(unwanted)

    def _rewrite(self, file: BuiltFile, source_file: pq.ParquetFile, kept: Any) -> BuiltFile:
        path = self.output.new_file(datasets.get(self.dataset), file.source, file.day)
        group_bytes = []
        with parquet_writer(path, source_file.schema_arrow.remove_metadata()) as writer:
            for group in range(source_file.num_row_groups):
                rows = source_file.read_row_group(group)
                rows = rows.filter(self._wanted(rows.column(SEQ)))
                if rows.num_rows:
                    writer.write_table(rows, row_group_size=rows.num_rows)
                    group_bytes.append(rows.nbytes)
            writer.add_key_value_metadata(row_groups.footer_note(group_bytes))
        finish(path)
        return replace(file, path=path, rows=len(kept), bytes=path.stat().st_size, max_seq=pc.max(kept).as_py())


def without_keys(built: Built, drop: Container[int]) -> Built:
    """Return a build result without the keys of dropped rows."""
    kept = replace(built, seqs=built.seqs[:0], keys=bytearray(), match_keys=built.match_keys.without(drop))
    packed = bytes(built.keys)
    for index, seq in enumerate(built.seqs):
        if seq not in drop:
            kept.seqs.append(seq)
            kept.keys += packed[index * KEY_BYTES : (index + 1) * KEY_BYTES]
    return kept
