"""Split an import into batches, one commit each, and each batch into tasks.

Sources keep their order: their ranges of sequences follow each other in it, and a task reads neighbouring sources,
whose days share files. The size of a batch is bounded to bound memory, and to keep finished work if an import is
interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hypaware.backfill.admission import EVERYTHING, Admission
from hypaware.backfill.pieces import SourcePiece
from hypaware.backfill.pinning import Due
from hypaware.lake.build import BuildTask

if TYPE_CHECKING:
    from hypaware.lake.committer import LakeTable
    from hypaware.state.flushes import Flush

LOT_BYTES = 512 << 20
_TASK_BYTES = 20 << 20

Sized = TypeVar("Sized", Due, SourcePiece)


@dataclass(frozen=True)
class Lot:
    """The sources of one commit."""

    due: tuple[Due, ...]

    @property
    def bytes(self) -> int:
        return sum(each.snapshot.size for each in self.due)

    @property
    def max_rows(self) -> int:
        """The number of sequences to reserve; at least one, so that ranges never touch."""
        return max(1, sum(each.max_rows for each in self.due))

    def halves(self) -> tuple[Lot, Lot]:
        middle = len(self.due) // 2
        return Lot(self.due[:middle]), Lot(self.due[middle:])


@dataclass(frozen=True)
class Origin:
    """The values that all tasks of an import share."""

    provider: str
    dataset: str
    environment: Mapping[str, str]
    gateway_id: str
    policy: Admission = EVERYTHING


def lots(due: Iterable[Due]) -> Iterator[Lot]:
    for batch in _cut(due, LOT_BYTES):
        yield Lot(tuple(batch))


def pieces(batch: Lot, origin: Origin, after: int) -> list[SourcePiece]:
    """Return a piece per source, each with its own range of sequences; the first range begins after `after`."""
    found, base = [], after + 1
    for each in batch.due:
        found.append(
            SourcePiece(
                origin.provider,
                origin.dataset,
                base,
                each.max_rows,
                each.snapshot,
                origin.environment,
                origin.gateway_id,
                origin.policy,
            )
        )
        base += each.max_rows
    return found


def tasks(batch: Lot, origin: Origin, flush: Flush, table: LakeTable) -> list[BuildTask]:
    field_ids, own = dict(table.field_ids), table.gateway_id
    made = [
        BuildTask(origin.dataset, tuple(group), flush.id, table.data_root, field_ids, size_of(group), own)
        for group in in_tasks(pieces(batch, origin, flush.after))
    ]
    # The largest tasks start first, so that none of them runs alone at the end.
    return sorted(made, key=lambda task: -task.bytes)


def in_tasks(source_pieces: Iterable[SourcePiece]) -> Iterator[list[SourcePiece]]:
    return _cut(source_pieces, _TASK_BYTES)


def size_of(source_pieces: Iterable[SourcePiece]) -> int:
    return sum(piece.snapshot.size for piece in source_pieces)


def _cut(items: Iterable[Sized], limit: int) -> Iterator[list[Sized]]:
    group: list[Sized] = []
    filled = 0
    for item in items:
        if group and filled + item.snapshot.size > limit:
            yield group
            group, filled = [], 0
        group.append(item)
        filled += item.snapshot.size
    if group:
        yield group
