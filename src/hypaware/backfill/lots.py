"""Cutting an import into commits, and each commit into tasks.

Sources keep their order: blocks of sequences follow each other in it, and a task has neighbours, whose days meet in
few files. A commit is bounded so that memory is, and so that an interrupted import keeps what it has done.
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
        return sum(each.pinned.size for each in self.due)

    @property
    def blocks(self) -> int:
        """As many sequences as there can be rows; one at least, so that ranges never meet."""
        return max(1, sum(each.max_rows for each in self.due))

    def halves(self) -> tuple[Lot, Lot]:
        middle = len(self.due) // 2
        return Lot(self.due[:middle]), Lot(self.due[middle:])


@dataclass(frozen=True)
class Origin:
    """What all pieces of an import share."""

    provider: str
    dataset: str
    environment: Mapping[str, str]
    gateway_id: str
    admission: Admission = EVERYTHING


def lots(due: Iterable[Due]) -> Iterator[Lot]:
    for some in _cut(due, LOT_BYTES):
        yield Lot(tuple(some))


def pieces(lot: Lot, origin: Origin, after: int) -> list[SourcePiece]:
    """Each source with its own block, the first of which begins after a sequence."""
    found, base = [], after + 1
    for each in lot.due:
        found.append(
            SourcePiece(
                origin.provider,
                origin.dataset,
                base,
                each.max_rows,
                each.pinned,
                origin.environment,
                origin.gateway_id,
                origin.admission,
            )
        )
        base += each.max_rows
    return found


def tasks(lot: Lot, origin: Origin, flush: Flush, table: LakeTable) -> list[BuildTask]:
    field_ids, own = dict(table.field_ids), table.gateway_id
    made = [
        BuildTask(origin.dataset, tuple(some), flush.id, table.data_root, field_ids, size_of(some), own)
        for some in in_tasks(pieces(lot, origin, flush.after))
    ]
    # A giant begins first, so that the others run beside it and nobody waits for it alone in the end.
    return sorted(made, key=lambda task: -task.bytes)


def in_tasks(some: Iterable[SourcePiece]) -> Iterator[list[SourcePiece]]:
    return _cut(some, _TASK_BYTES)


def size_of(some: Iterable[SourcePiece]) -> int:
    return sum(piece.pinned.size for piece in some)


def _cut(things: Iterable[Sized], limit: int) -> Iterator[list[Sized]]:
    some: list[Sized] = []
    filled = 0
    for thing in things:
        if some and filled + thing.pinned.size > limit:
            yield some
            some, filled = [], 0
        some.append(thing)
        filled += thing.pinned.size
    if some:
        yield some
