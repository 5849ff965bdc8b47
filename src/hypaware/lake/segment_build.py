"""Build the files of a flush from its segments, and find poison: rows that make a build fail or take the engine down.

A segment may fail MAX_SHARED_ATTEMPTS times together with others; a death of the engine counts as a failure. The next
time it is built alone, and halved until the poison rows are found. A row that fails alone becomes a reject. So does a
row during whose build the engine has died three times; fewer may be a coincidence.

While a segment is built alone, `spool/<dataset>/poison/<segment>.json` has the slice that is being built and the slices
during which the engine died: `{"building": [start, stop] | null, "deaths": [[start, stop, count], ...]}`. It survives
the engine, so every death halves what is left to search.

@ref flush#build
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError, Retryable
from hypaware.home import Home, durable_files, session_context
from hypaware.home.storage import ObjectPath, open_whole
from hypaware.lake.build import BuildFailure, BuildResult, BuildSettings, Reject, SliceUnreadable, build_rows
from hypaware.lake.table import LakeBackend, OpenTable
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, RowRejected
from hypaware.spool import segments
from hypaware.state.flushes import Flush

MAX_SHARED_ATTEMPTS = 2
ENGINE_DIED = "engine_died"
_MAX_DEATHS = 3
_SLICE_BYTES = 8 << 20
_before_build = faults.crash_point("lake.poison.before-build", "a slice of a suspected segment is about to be built")
_Slice = tuple[int, int]
SessionFactsById = Mapping[str, Mapping[str, str]]
"""Session id → columns."""


@dataclass(frozen=True)
class SegmentSlice:
    """Lines [start, stop) of a segment whose first row has the sequence `base`."""

    segment: str
    path: Path
    base: int
    start: int
    stop: int
    copy: Path | Exception | None = None
    """A copy of these lines alone, or why the driver could not read them (`task_input`)."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            if isinstance(self.copy, Exception):
                raise self.copy
            if self.copy is not None:
                with open(self.copy, "rb") as file:
                    yield from enumerate(file, self.start)
                return
            with open_whole(self.path) as file:
                yield from itertools.islice(enumerate(file), self.start, self.stop)
        except OSError as error:
            if isinstance(self.path, ObjectPath) and not isinstance(error, FileNotFoundError):
                # The store does not answer: this segment is no worse than any other.
                raise
            raise SliceUnreadable(self.segment, error) from error

    def read_bytes(self) -> Iterator[bytes]:
        with open_whole(self.path) as file:
            yield from itertools.islice(file, self.start, self.stop)


@dataclass(frozen=True)
class SegmentTask:
    settings: BuildSettings
    slices: tuple[SegmentSlice, ...]
    facts: SessionFactsById = field(default_factory=dict)
    """Facts about sessions that became known after their rows were recorded."""

    @property
    def inputs(self) -> tuple[SegmentSlice, ...]:
        """The slices of files. Every machine can read those of objects."""
        return tuple(each for each in self.slices if not isinstance(each.path, ObjectPath))

    def with_copies(self, copies: Sequence[Path | Exception]) -> SegmentTask:
        placed = dict(zip(self.inputs, copies, strict=True))
        return replace(self, slices=tuple(replace(each, copy=placed.get(each)) for each in self.slices))

    def run(self) -> BuildResult:
        dataset, built = datasets.get(self.settings.dataset), BuildResult()

        def read_rows() -> Iterator[tuple[int, Row]]:
            for piece in self.slices:
                for ordinal, line in piece.lines():
                    try:
                        row = segments.decode_line(dataset, line, ordinal)
                    except RowRejected as reason:
                        built.rejects.append(Reject(piece.segment, ordinal, str(reason), line))
                        continue
                    if self.facts:
                        fill_session_facts(dataset, row, self.facts)
                    yield piece.base + ordinal, row

        return build_rows(self.settings, self.slices[0].base + self.slices[0].start, read_rows(), built)


def fill_session_facts(dataset: Dataset, row: Row, facts: SessionFactsById) -> None:
    """Fill the empty columns of a live row. A native row already has all facts that its client knew."""
    known = facts.get(row.get("session_id", ""))
    if known and not row.get("cwd") and dataset.match_rules is not None and dataset.match_rules.may_be_live(row):
        for name, value in known.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value


class PoisonRows(HypError):
    """A build failed because of its rows, which are in the given segments as far as is known."""

    def __init__(self, reason: str, segments: tuple[str, ...]) -> None:
        super().__init__(reason, kind="rows_at_fault")
        self.segments = segments


def build_segments(
    target: OpenTable, flush: Flush, settings: BuildSettings, paths: Mapping[str, Path]
) -> list[BuildResult]:
    """Build the segments of a flush, whose files are given by name. Raise PoisonRows or Retryable if that fails."""
    tasks = _make_tasks(target.home, flush, settings, paths)
    if any(segment.attempts > MAX_SHARED_ATTEMPTS for segment in flush.segments):
        # A suspected segment is flushed alone.
        search = PoisonSearch(search_path(target.home, flush.dataset, flush.segments[0].name))
        single = [replace(task, slices=(each,)) for task in tasks for each in task.slices]
        return [built for task in single for built in _bisect_poison(target.lake, task, search)]
    results = target.lake.run(tasks)
    failed = [(task, each) for task, each in zip(tasks, results, strict=True) if isinstance(each, BuildFailure)]
    if failed:
        blamed = [
            name
            for task, failure in failed
            for name in ((failure.segment,) if failure.segment else [each.segment for each in task.slices])
        ]
        raise failed_build_error(flush.dataset, [failure for _, failure in failed], tuple(blamed))
    return [result for result in results if isinstance(result, BuildResult)]


def _make_tasks(home: Home, flush: Flush, settings: BuildSettings, paths: Mapping[str, Path]) -> list[SegmentTask]:
    """Split segments into tasks of about equal bytes; large segments are divided, small ones share a task."""
    groups: list[list[SegmentSlice]] = [[]]
    filled = 0
    for segment in flush.segments:
        path = paths[segment.name]
        size = path.stat().st_size
        slices = max(1, min(segment.rows, -(-size // _SLICE_BYTES)))
        for start, stop in itertools.pairwise(segment.rows * part // slices for part in range(slices + 1)):
            if filled >= _SLICE_BYTES:
                groups.append([])
                filled = 0
            groups[-1].append(SegmentSlice(segment.name, path, segment.base, start, stop))
            filled += size // slices
    has_deferrable = any(segments.is_deferrable(segment.name) for segment in flush.segments)
    # Hooks often note these facts after the first exchange, so deferred rows get them when they are built.
    facts = session_context.all_session_columns(home.root) if has_deferrable else {}
    return [SegmentTask(settings, tuple(group), facts) for group in groups if group]


def failed_build_error(dataset: str, failures: Sequence[BuildFailure], blamed: tuple[str, ...] = ()) -> HypError:
    """Return the error for a build that failed: the environment's fault, such as a full disk, or that of the rows."""
    for failure in failures:
        if failure.is_environmental and failure.segment is None:
            return _environment_error(dataset, failure)
    return PoisonRows(failures[0].reason, blamed)


def search_path(home: Home, dataset: str, segment: str) -> Path:
    return segments.spool_folder(home, dataset).path / "poison" / f"{segment}.json"


class PoisonSearch:
    """What the builds of one suspected segment have shown so far, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deaths: Counter[_Slice] = Counter()
        durable_files.make_dir(path.parent)
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        self._deaths.update({(start, stop): count for start, stop, count in found["deaths"]})
        if found["building"]:
            start, stop = found["building"]
            self._deaths[start, stop] += 1

    def deaths(self, piece: SegmentSlice) -> int:
        """Return how often the engine has died while it built this slice."""
        return self._deaths[piece.start, piece.stop]

    @contextmanager
    def building(self, piece: SegmentSlice) -> Iterator[None]:
        """Note that the slice is being built, durably. The note stays if the engine dies."""
        self._store((piece.start, piece.stop))
        _before_build()
        try:
            yield
        except HypError as error:
            if error.kind != ENGINE_DIED:
                self._store(None)
            raise
        self._store(None)

    def _store(self, building: _Slice | None) -> None:
        deaths = [(*piece, count) for piece, count in sorted(self._deaths.items())]
        content = {"building": building, "deaths": deaths}
        durable_files.write_atomic(self._path, json.dumps(content).encode())


def _bisect_poison(lake: LakeBackend, task: SegmentTask, search: PoisonSearch) -> list[BuildResult]:
    """Build the task's only slice, or its halves if that fails or kills. Reject a single line that does."""
    (piece,) = task.slices
    is_single = piece.stop - piece.start == 1
    deaths = search.deaths(piece)
    if deaths < (_MAX_DEATHS if is_single else 1):
        with search.building(piece):
            (result,) = lake.run([task])
        if isinstance(result, BuildResult):
            return [result]
        if result.is_environmental:
            raise _environment_error(task.settings.dataset, result)
        reason = result.reason
    else:
        reason = f"the engine died {deaths} times while it built this row"
    if is_single:
        rejected = [Reject(piece.segment, ordinal, reason, line) for ordinal, line in piece.lines()]
        return [BuildResult(rejects=rejected)]
    middle = (piece.start + piece.stop) // 2
    halves = (replace(piece, stop=middle), replace(piece, start=middle))
    return [built for half in halves for built in _bisect_poison(lake, replace(task, slices=(half,)), search)]


def _environment_error(dataset: str, failure: BuildFailure) -> Retryable:
    return Retryable(
        f"{dataset}: could not write the rows ({failure.reason}); no row is lost, the next run retries them",
        kind="build_failed",
    )
