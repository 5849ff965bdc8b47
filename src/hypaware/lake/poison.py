"""Poison: rows that make a build fail or take the engine down, and the search for them.

A segment may fail MAX_SHARED_ATTEMPTS times together with others; a death of the engine counts as a failure. The next
time it is built alone, and halved until the poison rows are found. A row that fails alone becomes a reject. So does a
row during whose build the engine has died three times; fewer may be a coincidence.

While a segment is built alone, `spool/<dataset>/poison/<segment>.json` has the slice that is being built and the slices
during which the engine died: `{"building": [start, stop] | null, "deaths": [[start, stop, count], ...]}`. It survives
the engine, so every death halves the rest of the search.

@ref flush#build
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError, Retryable
from hypaware.home import Home, durable_files
from hypaware.lake.build import BuildFailure, BuildResult, Reject, SegmentSlice, SegmentTask
from hypaware.lake.table import LakeBackend
from hypaware.spool import segments
from hypaware.state.flushes import Flush

MAX_SHARED_ATTEMPTS = 2
ENGINE_DIED = "engine_died"
_MAX_DEATHS = 3
_before_build = faults.crash_point("lake.poison.before-build", "a slice of a suspected segment is about to be built")
_Slice = tuple[int, int]


class PoisonRows(HypError):
    """A build failed because of its rows, which are in the given segments as far as is known."""

    def __init__(self, reason: str, segments: tuple[str, ...]) -> None:
        super().__init__(reason, kind="rows_at_fault")
        self.segments = segments


def require_built(
    dataset: str, tasks: Sequence[SegmentTask], results: Sequence[BuildResult | BuildFailure]
) -> list[BuildResult]:
    """Return the results of the tasks. Raise PoisonRows, which names the segments to blame, or Retryable."""
    failed = [(task, each) for task, each in zip(tasks, results, strict=True) if isinstance(each, BuildFailure)]
    if failed:
        blamed = [
            name
            for task, failure in failed
            for name in ((failure.segment,) if failure.segment else [each.segment for each in task.slices])
        ]
        raise failed_build_error(dataset, [failure for _, failure in failed], tuple(blamed))
    return [result for result in results if isinstance(result, BuildResult)]


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


def isolate_poison(home: Home, lake: LakeBackend, flush: Flush, tasks: Sequence[SegmentTask]) -> list[BuildResult]:
    """Build a suspected segment, which is flushed alone, slice by slice."""
    search = PoisonSearch(search_path(home, flush.dataset, flush.segments[0].name))
    single = [replace(task, slices=(each,)) for task in tasks for each in task.slices]
    return [built for task in single for built in _bisect_poison(lake, task, search)]


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
