"""Build: write rows to Parquet files. Runs in Spark tasks and touches only the task's own files.

A piece yields rows with their sequences, and the same ones each time. A task adds the internal columns, writes one
fsynced file per (source, day), and returns the files, the keys and the rejects to `prepare`.

@ref flush#build
"""

from __future__ import annotations

import gc
import itertools
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hypaware.lake.parquet import BuiltFile, OutputPaths, PartitionWriter
from hypaware.lake.row_keys import MatchKeys, hash_row_key
from hypaware.lake.tombstones import NO_PURGES, PurgeFilter
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, Dataset, Row, RowRejected
from hypaware.spool import segments

if TYPE_CHECKING:
    from pyspark import SparkContext

_WATCH_SECONDS = 0.25

SessionFactsById = Mapping[str, Mapping[str, str]]
"""Session id → columns."""
BuildWatcher = Callable[[int, int, int], None]
"""Receives (bytes, pieces, rows) of the finished tasks of the current run."""


class BuildPiece(Protocol):
    @property
    def first_seq(self) -> int:
        """The lowest sequence that a row of this piece can have."""

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        """The segments to blame if this piece cannot be built."""

    def rows(self, dataset: Dataset, built: BuildResult) -> Iterator[tuple[int, Row]]:
        """Yield (sequence, coerced row). Add rejects and reports to `built`."""


class RowWriter(Protocol):
    def add(self, row: Row, seq: int) -> None: ...
    def close(self) -> list[BuiltFile]: ...
    def discard(self) -> None: ...


class Task(Protocol):
    def run(self) -> BuildResult: ...


@dataclass(frozen=True)
class Reject:
    segment: str
    ordinal: int
    reason: str
    line: bytes


@dataclass
class BuildResult:
    files: list[BuiltFile] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    seqs: array[int] = field(default_factory=lambda: array("q"))
    keys: bytearray = field(default_factory=bytearray)
    """The key hash of each row in `seqs`, KEY_BYTES bytes each. Rows without a key are in neither."""
    reports: list[Any] = field(default_factory=list)
    """Values that pieces and tasks pass back to their creator."""
    withdrawn: list[range] = field(default_factory=list)
    """Sequences of rows that a piece yielded and then withdrew. They are removed from the files again."""
    purged: array[int] = field(default_factory=lambda: array("q"))
    """Sequences of purged rows, which were not written."""
    match_keys: MatchKeys = field(default_factory=MatchKeys)
    """Match keys: what live and native rows of the same part share."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class BuildTask:
    dataset: str
    pieces: tuple[BuildPiece, ...]
    flush_id: str
    data_root: Path
    field_ids: Mapping[str, int]
    bytes: int = 0
    """Bytes to read, for progress reports."""
    own_gateway: str | None = None
    """The gateway id of this home. Rows of other gateways are deduplicated separately."""
    purge_filter: PurgeFilter = NO_PURGES
    """Purged sessions and periods. Their rows are counted and not written."""
    match_native: bool = False
    """Whether `BuildResult.match_keys` also covers native rows."""
    facts: SessionFactsById = field(default_factory=dict)
    """Facts about sessions that became known after their rows were recorded."""

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return tuple(name for piece in self.pieces for name in piece.blamed_segments)

    def run(self, writer: RowWriter | None = None) -> BuildResult:
        """Read the inputs and write their rows. A dry run passes a writer that only counts them."""
        dataset = datasets.get(self.dataset)
        if writer is None:
            paths = OutputPaths(self.data_root, self.flush_id, self.pieces[0].first_seq)
            writer = PartitionWriter(dataset, paths, self.field_ids)
        built = BuildResult()
        is_purged = self.purge_filter.predicate(dataset)
        may_be_live = dataset.match_rules.may_be_live if dataset.match_rules is not None else None
        # Reference counting frees rows; if the cycle collector scans millions of them, the build takes twice as long.
        collects_garbage = gc.isenabled()
        gc.disable()
        try:
            for piece in self.pieces:
                for seq, row in piece.rows(dataset, built):
                    if is_purged is not None and is_purged(row):
                        built.purged.append(seq)
                        continue
                    if self.facts:
                        fill_session_facts(dataset, row, self.facts)
                    if (key := hash_row_key(dataset, row, self.own_gateway)) is not None:
                        built.seqs.append(seq)
                        built.keys += key
                    if (
                        may_be_live is not None
                        and (self.match_native or may_be_live(row))
                        # Rows of another gateway were matched there.
                        and self.own_gateway in (None, row.get(GATEWAY))
                    ):
                        built.match_keys.record(dataset, row, seq)
                    writer.add(row, seq)
            built.files = writer.close()
        except BaseException:
            writer.discard()
            raise
        finally:
            if collects_garbage:
                gc.enable()
        return built


@dataclass(frozen=True)
class BuildFailure:
    """A failed build task. Its rows are to blame unless `is_environmental` is set."""

    reason: str
    is_environmental: bool = False
    segment: str | None = None
    """The segment whose file could not be read."""


class SegmentUnreadable(Exception):
    def __init__(self, segment: str, error: OSError) -> None:
        super().__init__(f"segment {segment} cannot be read: {error}")
        self.segment = segment


def run_catching(task: Task, counts: Sequence[Any] = ()) -> BuildResult | BuildFailure:
    """Run a task in an executor, with the accumulators of `watch_build`. A failure must not fail the other tasks."""
    try:
        result = task.run()
        if counts and isinstance(task, BuildTask):
            for count, done in zip(counts, (task.bytes, len(task.pieces), result.rows), strict=True):
                count.add(done)
        return result
    except SegmentUnreadable as error:
        return BuildFailure(str(error), is_environmental=True, segment=error.segment)
    except (OSError, MemoryError) as error:
        return BuildFailure(f"{type(error).__name__}: {error}", is_environmental=True)
    except Exception as error:
        return BuildFailure(f"{type(error).__name__}: {error}")


def confirm_worker(_: object) -> bool:
    """Return True in an executor, which proves that workers start and can import this module."""
    return True


@dataclass(frozen=True)
class SegmentSlice:
    """Lines [start, stop) of a segment whose first row has the sequence `base`."""

    segment: str
    path: Path
    base: int
    start: int
    stop: int

    @property
    def first_seq(self) -> int:
        return self.base + self.start

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return (self.segment,)

    def rows(self, dataset: Dataset, built: BuildResult) -> Iterator[tuple[int, Row]]:
        for ordinal, line in self.lines():
            try:
                row = segments.decode_line(dataset, line, ordinal)
            except RowRejected as reason:
                built.rejects.append(Reject(self.segment, ordinal, str(reason), line))
                continue
            yield self.base + ordinal, row

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with open(self.path, "rb") as file:
                yield from itertools.islice(enumerate(file), self.start, self.stop)
        except OSError as error:
            raise SegmentUnreadable(self.segment, error) from error


def fill_session_facts(dataset: Dataset, row: Row, facts: SessionFactsById) -> None:
    """Fill the empty columns of a live row. A native row already has all facts that its client knew."""
    known = facts.get(row.get("session_id", ""))
    if known and not row.get("cwd") and dataset.match_rules is not None and dataset.match_rules.may_be_live(row):
        for name, value in known.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value


@contextmanager
def watch_build(spark: SparkContext, watcher: BuildWatcher) -> Iterator[Callable[[Task], BuildResult | BuildFailure]]:
    """Yield a function that runs a task in an executor and counts its results. Call the watcher periodically."""
    counts = [spark.accumulator(0) for _ in range(3)]
    stopped = threading.Event()

    def report() -> None:
        while not stopped.wait(_WATCH_SECONDS):
            try:
                watcher(*(count.value for count in counts))
            except Exception:
                # The client has disconnected; the job itself detects and reports that.
                return

    reporter = threading.Thread(target=report, name="watching", daemon=True)
    reporter.start()
    try:
        yield partial(run_catching, counts=counts)
    finally:
        stopped.set()
        reporter.join()
