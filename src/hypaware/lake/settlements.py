"""Native rows that met a fallback row of the lake, until a compaction makes that row what they say.

`lake/settlements/<dataset>/<flush id>-<first sequence>.parquet`: the rows as a build wrote them, and in `_hyp_settles`
the sequence of the row that each of them settles. A file is durable before its flush commits and goes if that is burnt,
so what lies there when nothing is unfinished counts. A row that was settled has its new id and the old one, and is not
settled again.

@ref keys#settlements
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware import durable, faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake.build import row_key
from hypaware.lake.coerced import coerced_rows
from hypaware.lake.settlement_files import folder
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, INTERNAL, SEQ, Dataset, Row
from hypaware.state.flushes import Flush

_before_remove = faults.point(
    "lake.settlements.before-remove", "settled rows are committed, their settlements lie there"
)
_after_remove = faults.point("lake.settlements.after-remove", "settlements that were carried out are gone")

TARGET = "_hyp_settles"


class Damaged(LakeError):
    """A settlement that cannot be read. Its rows are those of transcripts, which tell them again."""

    kind = "settlement_damaged"


def write(path: Path, rows: Sequence[pa.Table], settles: Mapping[int, int]) -> None:
    """In a task: rows of a build, and which row of the lake each of them settles."""
    held = pa.concat_tables(rows)
    targets = pa.array([settles[seq] for seq in held.column(SEQ).to_pylist()], pa.int64())
    durable.make_dir(path.parent.parent)
    durable.make_dir(path.parent)
    _store(path, held.append_column(TARGET, targets))


def _store(path: Path, rows: pa.Table) -> None:
    unfinished = path.with_suffix(".tmp")
    pq.write_table(rows, unfinished, compression="zstd")
    unfinished.chmod(0o600)
    durable.fsync_file(unfinished)
    durable.rename(unfinished, path)


def discard(home: Home, flush: Flush) -> None:
    """The flush did not land; whatever its rows were, they come again."""
    found = list(folder(home, flush.dataset).glob(f"{flush.id}-*"))
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        durable.fsync_dir(folder(home, flush.dataset))


def remove(paths: Sequence[Path]) -> None:
    """They were carried out."""
    _before_remove()
    for path in paths:
        path.unlink(missing_ok=True)
    for where in {path.parent for path in paths}:
        durable.fsync_dir(where)
    _after_remove()


def targets(dataset: Dataset, path: Path) -> dict[int, str]:
    """Sequences of the rows that it settles, and the keys that they will have."""
    found = _read(path, [TARGET, dataset.key_column])
    return dict(zip(found.column(TARGET).to_pylist(), found.column(dataset.key_column).to_pylist(), strict=True))


def keys(dataset: Dataset, path: Path, own_gateway: str | None) -> Iterator[tuple[bytes, int]]:
    """Under which keys the rows that it settles are known, too."""
    wanted = dict.fromkeys([TARGET, GATEWAY, dataset.key_column, *dataset.key_parts])
    for row in _read(path, list(wanted)).to_pylist():
        if (key := row_key(dataset, row, own_gateway)) is not None:
            yield key, row[TARGET]


def native_rows(dataset: Dataset, path: Path, of: Container[int]) -> list[Row]:
    """The native rows of some targets, as a producer gives them."""
    rows = _read(path)
    meant = pa.array([target in of for target in rows.column(TARGET).to_pylist()], pa.bool_())
    public = [column.name for column in dataset.columns if column.name in rows.column_names]
    return [row for batch in rows.filter(meant).select(public).to_batches() for row in coerced_rows(dataset, batch)]


def keep_only(path: Path, left: Container[int]) -> None:
    """The others were carried out."""
    rows = _read(path)
    meant = pa.array([target in left for target in rows.column(TARGET).to_pylist()], pa.bool_())
    _store(path, rows.filter(meant))


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Amendment:
    """Carries settlements out on rows that are written again. A plain value, it travels to the tasks."""

    dataset: str
    paths: tuple[Path, ...]

    def of(self, rows: pa.Table) -> pa.Table:
        """The same rows, those that are settled with their native columns, and their own sequence."""
        seqs = rows.column(SEQ)
        native = self._native(seqs)
        if not native:
            return rows
        settling = datasets.get(self.dataset).settling
        assert settling is not None
        meant = pc.fill_null(pc.is_in(seqs, value_set=pa.array(native, pa.int64())), False)
        amended = [
            settling.settled(row, native[row[SEQ]]) if settling.meeting(row) is not None else row
            for row in rows.filter(meant).to_pylist()
        ]
        others = rows.filter(pc.invert(meant))
        both = pa.concat_tables([others, pa.Table.from_pylist(amended, schema=rows.schema)])
        return both.take(pc.sort_indices(both.column(SEQ)))

    def _native(self, seqs: Any) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for path in filter(Path.exists, self.paths):
            rows = _read(path)
            for row in rows.filter(pc.is_in(rows.column(TARGET), value_set=seqs.combine_chunks())).to_pylist():
                target = row.pop(TARGET)
                found.setdefault(target, {name: value for name, value in row.items() if name not in INTERNAL})
        return found
