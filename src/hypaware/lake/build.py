"""Build: pieces of something that holds rows become Parquet files. Runs in Spark's tasks; touches only its own files.

A piece gives its rows with their sequences, the same ones each time it is asked: lines of a segment (`slices`), or
what an import reads (`backfill`). A task stamps them, writes one file per (source, day), synced, and returns what it
wrote, the dedupe keys it saw and what was refused. The driver decides which rows are duplicates; `thin` takes those
out of the files again.

@ref flush#build
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from hypaware.lake import late_facts
from hypaware.lake.closed import NOTHING, Closed
from hypaware.lake.meetings import Meetings, noting
from hypaware.lake.partitions import BuiltFile, PartitionWriter, Place
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, Dataset, Row

KEY_BYTES = 16


class Piece(Protocol):
    @property
    def first_seq(self) -> int:
        """No row of the piece has a lower one."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Segments to blame if the piece cannot be built."""

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        """(sequence, coerced row); what is refused or worth telling goes straight into `built`."""


class Task(Protocol):
    """What an executor is given."""

    def run(self) -> Built: ...


@dataclass(frozen=True)
class Reject:
    segment: str
    ordinal: int
    reason: str
    line: bytes


@dataclass
class Built:
    files: list[BuiltFile] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    seqs: array[int] = field(default_factory=lambda: array("q"))
    keys: bytearray = field(default_factory=bytearray)
    """The key hash of each row in `seqs`, KEY_BYTES each. Rows without a key are in neither."""
    notes: list[Any] = field(default_factory=list)
    """What the pieces tell whoever made them."""
    withdrawn: list[range] = field(default_factory=list)
    """Sequences of rows that a piece gave and then took back; they are taken out of the files again."""
    purged: array[int] = field(default_factory=lambda: array("q"))
    """Sequences of rows that belong to what was purged; they were not written."""
    meetings: Meetings = field(default_factory=Meetings)
    """By what rows can meet other records of the same thing."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class BuildTask:
    dataset: str
    pieces: tuple[Piece, ...]
    flush_id: str
    data_root: Path
    field_ids: Mapping[str, int]
    bytes: int = 0
    """How much it reads, for whoever watches."""
    own_gateway: str | None = None
    """Whose home this is: rows of other gateways have keys of their own."""
    closed: Closed = NOTHING
    """What was purged for good: such rows are counted, and not written."""
    meets_all: bool = False
    """Whether native rows are noted in `Built.meetings`, too."""
    facts: late_facts.Facts = field(default_factory=dict)
    """What was noted of sessions since their rows were recorded."""

    @property
    def suspects(self) -> tuple[str, ...]:
        return tuple(name for piece in self.pieces for name in piece.suspects)

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        built = Built()
        place = Place(self.data_root, self.flush_id, self.pieces[0].first_seq)
        writer = PartitionWriter(dataset, place, self.field_ids)
        bar = self.closed.bar(dataset)
        note = noting(dataset, self.own_gateway, self.meets_all, built.meetings)
        try:
            with _no_garbage_collection():
                for piece in self.pieces:
                    for seq, row in piece.rows(dataset, built):
                        if bar is not None and bar(row):
                            built.purged.append(seq)
                            continue
                        if self.facts:
                            late_facts.fill(dataset, row, self.facts)
                        if (key := row_key(dataset, row, self.own_gateway)) is not None:
                            built.seqs.append(seq)
                            built.keys += key
                        if note is not None:
                            note(row, seq)
                        writer.add(row, seq)
                built.files = writer.close()
        except BaseException:
            writer.discard()
            raise
        return built


@dataclass(frozen=True)
class BuildFailure:
    """A task that could not build its rows, and why. The rows are at fault unless `surroundings` is set."""

    reason: str
    surroundings: bool = False
    segment: str | None = None
    """The one whose file could not be read."""


class Unreadable(Exception):
    """A segment's file cannot be read."""

    def __init__(self, segment: str, error: OSError) -> None:
        super().__init__(f"segment {segment} cannot be read: {error}")
        self.segment = segment


def row_key(dataset: Dataset, row: Mapping[str, Any], own_gateway: str | None) -> bytes | None:
    """The hash of a row's dedupe key; None for a row without one, which is never dropped.

    A row that came from another gateway is known by that gateway and its key, so that no gateway can claim, or hide,
    another's rows. Without `own_gateway` every row counts as the home's own.
    """
    if (key := dataset.key_of(row)) is None:
        return None
    gateway = row.get(GATEWAY)
    return key_hash(dataset.name, key, None if own_gateway is None or gateway == own_gateway else gateway)


def key_hash(dataset: str, key: str, gateway: str | None = None) -> bytes:
    """Half a sha256, so that Spark SQL can compute the same over the lake's own rows."""
    # No dataset has an @ in its name, and the length says where the gateway's id ends.
    whose = dataset if gateway is None else f"{dataset}@{len(gateway)}:{gateway}"
    return sha256(f"{whose}:{key}".encode()).digest()[:KEY_BYTES]


def run_or_say_why(task: Task) -> Built | BuildFailure:
    """For the executors: a failure is a result, so that one task's rows do not take its neighbours' down."""
    try:
        return task.run()
    except Unreadable as error:
        return BuildFailure(str(error), surroundings=True, segment=error.segment)
    except (OSError, MemoryError) as error:
        return BuildFailure(f"{type(error).__name__}: {error}", surroundings=True)
    except Exception as error:
        return BuildFailure(f"{type(error).__name__}: {error}")


def workers_run(_: object) -> bool:
    """For the executors: an answer shows that a worker starts and has this module."""
    return True


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Rows are trees that reference counting frees; looking for cycles among a million of them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
