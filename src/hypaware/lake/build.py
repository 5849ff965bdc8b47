"""Build: write rows to Parquet files. Runs in Spark tasks and touches only the task's own files.

An input yields rows with their sequences and is deterministic: lines of a segment (`slices`), or the rows of an import
(`backfill`). A task adds the internal columns, writes one fsynced file per (source, day), and returns the files, the
dedupe keys and the rejects. The driver then finds the duplicates; `thin` removes them from the files.

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
        """The lowest sequence that a row of this input can have."""

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        """The segments to blame if this input cannot be built."""

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        """Yield (sequence, coerced row). Add rejects and reports to `built`."""


class Task(Protocol):
    """A unit of work for an executor."""

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
    """The key hash of each row in `seqs`, KEY_BYTES bytes each. Rows without a key are in neither."""
    reports: list[Any] = field(default_factory=list)
    """Values that inputs and tasks pass back to their creator."""
    withdrawn: list[range] = field(default_factory=list)
    """Sequences of rows that an input yielded and then withdrew. They are removed from the files again."""
    purged: array[int] = field(default_factory=lambda: array("q"))
    """Sequences of purged rows, which were not written."""
    match_keys: Meetings = field(default_factory=Meetings)
    """Match keys: what live and native rows of the same part share."""

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
    """Bytes to read, for progress reports."""
    own_gateway: str | None = None
    """The gateway id of this home. Rows of other gateways are deduplicated separately."""
    purge_filter: Closed = NOTHING
    """Purged sessions and periods. Their rows are counted and not written."""
    match_native: bool = False
    """Whether `Built.match_keys` also covers native rows."""
    facts: late_facts.Facts = field(default_factory=dict)
    """Facts about sessions that became known after their rows were recorded."""

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return tuple(name for piece in self.pieces for name in piece.blamed_segments)

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        built = Built()
        place = Place(self.data_root, self.flush_id, self.pieces[0].first_seq)
        writer = PartitionWriter(dataset, place, self.field_ids)
        is_purged = self.purge_filter.predicate(dataset)
        record_match_keys = noting(dataset, self.own_gateway, self.match_native, built.match_keys)
        try:
            with _no_garbage_collection():
                for piece in self.pieces:
                    for seq, row in piece.rows(dataset, built):
                        if is_purged is not None and is_purged(row):
                            built.purged.append(seq)
                            continue
                        if self.facts:
                            late_facts.fill(dataset, row, self.facts)
                        if (key := row_key(dataset, row, self.own_gateway)) is not None:
                            built.seqs.append(seq)
                            built.keys += key
                        if record_match_keys is not None:
                            record_match_keys(row, seq)
                        writer.add(row, seq)
                built.files = writer.close()
        except BaseException:
            writer.discard()
            raise
        return built


@dataclass(frozen=True)
class BuildFailure:
    """A failed build task. Its rows are to blame unless `is_environmental` is set."""

    reason: str
    is_environmental: bool = False
    segment: str | None = None
    """The segment whose file could not be read."""


class Unreadable(Exception):
    def __init__(self, segment: str, error: OSError) -> None:
        super().__init__(f"segment {segment} cannot be read: {error}")
        self.segment = segment


def row_key(dataset: Dataset, row: Mapping[str, Any], own_gateway: str | None) -> bytes | None:
    """Hash a row's dedupe key. Return None for a row without one, which is never dropped.

    The hash of a row from another gateway includes that gateway's id, so that no gateway can claim or hide another's
    rows. If `own_gateway` is None, every row counts as the home's own.
    """
    if (key := dataset.key_of(row)) is None:
        return None
    gateway = row.get(GATEWAY)
    return key_hash(dataset.name, key, None if own_gateway is None or gateway == own_gateway else gateway)


def key_hash(dataset: str, key: str, gateway: str | None = None) -> bytes:
    """Hash a dedupe key to half a sha256, which Spark SQL can compute over the lake's rows too."""
    # No dataset name contains an @, and the length marks the end of the gateway id.
    scope = dataset if gateway is None else f"{dataset}@{len(gateway)}:{gateway}"
    return sha256(f"{scope}:{key}".encode()).digest()[:KEY_BYTES]


def run_or_say_why(task: Task) -> Built | BuildFailure:
    """Run a task in an executor. Return a failure as a result, so that it does not fail the other tasks."""
    try:
        return task.run()
    except Unreadable as error:
        return BuildFailure(str(error), is_environmental=True, segment=error.segment)
    except (OSError, MemoryError) as error:
        return BuildFailure(f"{type(error).__name__}: {error}", is_environmental=True)
    except Exception as error:
        return BuildFailure(f"{type(error).__name__}: {error}")


def workers_run(_: object) -> bool:
    """Return True in an executor, which proves that workers start and can import this module."""
    return True


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the cycle collector. Reference counting frees rows; scanning millions of them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
