"""Prepare a flush for its commit: build the files, store the rejects, and remove purged rows and duplicates.

No table references the files yet. If a step fails, the flush is discarded and its rows stay where they are.

A build skips rows of purged sessions and periods while it reads them. `find_purged` finds the other purged rows: those
whose part was purged under any session, and rejects that would otherwise be kept with their text.

Rejects are kept with the reason in `spool/<dataset>/rejected/<flush id>.jsonl`. A line is `{"segment", "ordinal",
"reason", "line"}`. `line` is the segment's line as text; a line that is not UTF-8 is stored as `line_base64`. The file
is durable before the flush commits, so a recorded flush never loses its rejects.

@ref flush#build @ref flush#rejects
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.home import Home, durable_files
from hypaware.home.storage import arrow_source
from hypaware.lake import dedupe, health, lost_rows, settlements, tombstones
from hypaware.lake.build import (
    BuildFailure,
    BuildResult,
    BuildSettings,
    BuiltFile,
    DataFileWriter,
    OutputPaths,
    Reject,
)
from hypaware.lake.dedupe import Matches
from hypaware.lake.poison import failed_build_error
from hypaware.lake.row_keys import MatchKey, unpack_keys
from hypaware.lake.table import OpenTable
from hypaware.lake.tombstones import Tombstones
from hypaware.model import canonical, datasets
from hypaware.model.datasets import GATEWAY, KEY_BYTES, SEQ, Dataset, hash_row_key
from hypaware.model.row_counts import RowCounts
from hypaware.spool import segments
from hypaware.state.flushes import Flush, FlushOutcome

_after_build = faults.crash_point("lake.build.after-write", "data files are written, no table references them")
_after_drop = faults.crash_point(
    "lake.thin.after-write", "files with duplicates are rewritten without them, settlements are stored"
)
_before_rejects = faults.crash_point("lake.rejects.before-write", "rows were rejected, they are only in their segment")
_after_rejects = faults.crash_point("lake.rejects.after-write", "rejects are stored, the flush is not committed")


@dataclass(frozen=True)
class PreparedFlush:
    files: list[BuiltFile]
    keys: list[tuple[bytes, int]]
    """Keys of the rows, and of matched rows that were dropped, with the sequence of the row that was kept."""
    duplicates: frozenset[int]
    rejected: int
    reports: list[Any] = field(default_factory=list)
    purged: frozenset[int] = frozenset()
    """Sequences of rows that belong to a purge and were dropped."""
    purged_rejects: int = 0
    settled: frozenset[int] = frozenset()
    """Sequences of native rows that settle live rows of the lake and do not become rows themselves."""
    match_keys: list[MatchKey] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    settled_keys: list[bytes] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    """Sequences of lost rows that the files have again."""

    def outcome(self) -> FlushOutcome:
        high_water: dict[str, int] = {}
        for file in self.files:
            high_water[file.source] = max(file.max_seq, high_water.get(file.source, 0))
        counts = RowCounts(
            written=sum(file.rows for file in self.files),
            duplicate=len(self.duplicates),
            rejected=self.rejected,
            settled=len(self.settled),
            purged=len(self.purged) + self.purged_rejects,
        )
        return FlushOutcome(high_water, counts)


def plan_build(target: OpenTable, flush: Flush, own_gateway: str | None) -> BuildSettings:
    """Return how to build the files of a flush."""
    index, dataset, marks = target.index, target.dataset, tombstones.read_tombstones(target.home)
    if dataset.match_rules is not None and not index.has_match_keys(dataset.name):
        spool = segments.spool_folder(target.home, dataset.name)
        # Live rows are waiting for these.
        if any(segments.is_deferrable(path.name) for path in segments.list_files(spool)):
            dedupe.enable_matching(target.home, target.lake, index, target.table, dataset)
    match_native = marks.has_parts or index.has_match_keys(dataset.name)
    table = target.table
    return BuildSettings(
        dataset.name, flush.id, table.data_root, dict(table.field_ids), own_gateway, marks, match_native
    )


def prepare_flush(
    target: OpenTable, flush: Flush, settings: BuildSettings, results: Sequence[BuildResult | BuildFailure]
) -> PreparedFlush:
    """Prepare what the tasks of a flush have built. Raise PoisonRows or Retryable if one of them failed."""
    index, dataset, marks = target.index, target.dataset, settings.tombstones
    if failures := [each for each in results if isinstance(each, BuildFailure)]:
        raise failed_build_error(dataset.name, failures)
    succeeded = (each for each in results if isinstance(each, BuildResult))
    built = [drop_withdrawn(result) if result.withdrawn else result for result in succeeded]
    if any(result.match_keys.has_live for result in built) and not index.has_match_keys(dataset.name):
        # The first live rows of the table.
        dedupe.enable_matching(target.home, target.lake, index, target.table, dataset)
    if index.has_match_keys(dataset.name) and not settings.match_native:
        # Matching began after this build: with live rows of its own, or with those of the batch before it.
        built = dedupe.add_native_keys(target.lake, target.table, dataset, built)
    _after_build()
    purged = find_purged(marks, dataset, settings.own_gateway, built)
    if purged.rejects:
        _before_rejects()
        durable_files.write_atomic(rejects_path(target.home, flush), b"".join(map(_encode_reject, purged.rejects)))
        _after_rejects()
    by_key = dedupe.find_duplicates(index, built, purged.written)
    restored = lost_rows.find_restored(index, built, by_key.duplicates) if by_key.duplicates else {}
    by_key.duplicates.difference_update(restored)
    matches, copies = Matches(), list[MatchKey]()
    if any(len(result.match_keys) for result in built):
        copies = dedupe.find_copies(index, built, by_key) if index.has_match_keys(dataset.name) else []
        excluded = by_key.excluded | purged.written | restored.keys()
        unmatched = (each for result in built for each in result.match_keys if each.seq not in excluded)
        new = sorted(unmatched, key=attrgetter("seq"))
        # Live rows match copies all the same, although those become no rows.
        matches = dedupe.match_rows(new, [*index.find_unmatched(each.hash for each in new), *copies])
    superseded, upgrades = {**by_key.superseded, **matches.superseded}, {**by_key.upgrades, **matches.upgrades}
    kept_seqs = {**superseded, **upgrades}
    aliases = [(key, kept_seqs[seq]) for key, seq in _all_keys(built) if seq in kept_seqs]
    # A live row that was dropped for another one leaves it the key under which the native row will settle it.
    inherited = [
        each._replace(seq=kept_seqs[each.seq])
        for result in built
        for each in result.match_keys
        if each.is_unsettled and each.seq in matches.superseded
    ]
    duplicates = {*by_key.duplicates, *superseded}
    drop = duplicates.union(purged.written, upgrades)
    if drop or restored or any(result.withdrawn for result in built):
        built = _drop_rows(target, flush, built, frozenset(drop), upgrades, restored)
        _after_drop()
    return PreparedFlush(
        files=[file for result in built for file in result.files],
        keys=[*_all_keys(built), *aliases],
        duplicates=frozenset(duplicates),
        rejected=len(purged.rejects),
        reports=[report for result in built for report in result.reports],
        purged=purged.all,
        purged_rejects=purged.purged_rejects,
        settled=frozenset(upgrades),
        match_keys=[
            *(key._replace(seq=restored.get(key.seq, key.seq)) for result in built for key in result.match_keys),
            *inherited,
            *copies,
        ]
        if index.has_match_keys(dataset.name)
        else [],
        matched=[*matches.matched, *by_key.upgrades.values()],
        settled_keys=by_key.settled_keys,
        restored=list(restored.values()),
    )


def _all_keys(built: Sequence[BuildResult]) -> Iterator[tuple[bytes, int]]:
    return (pair for result in built for pair in unpack_keys(result.keys, result.seqs))


def drop_withdrawn(built: BuildResult) -> BuildResult:
    """Drop the keys of withdrawn rows: they must not count as duplicates or as purged."""
    purged = array("q", (seq for seq in built.purged if not any(seq in each for each in built.withdrawn)))
    withdrawn = {seq for each in built.withdrawn for seq in built.seqs if seq in each}
    return replace(drop_keys(built, withdrawn) if withdrawn else built, purged=purged)


@dataclass(frozen=True)
class PurgedRows:
    written: frozenset[int]
    """Sequences of rows that the built files contain and that must be removed from them."""
    skipped: frozenset[int]
    """Sequences of rows that the build did not write."""
    rejects: list[Reject]
    """Rejects that were not purged."""
    purged_rejects: int

    @property
    def all(self) -> frozenset[int]:
        return self.written | self.skipped


def find_purged(
    marks: Tombstones, dataset: Dataset, own_gateway: str | None, built: Sequence[BuildResult]
) -> PurgedRows:
    """Find the purged rows of a build. Changes nothing, so a dry run calls it too."""
    written: set[int] = set()
    if marks.has_parts:
        found = list(_all_keys(built))
        purged = marks.find({key for key, _ in found})
        written = {seq for key, seq in found if key in purged}
        # Other records of purged parts. A text that is equal to a purged one is kept if it was said after the purge.
        match_keys = [key for result in built for key in result.match_keys]
        purged_at = marks.purged_at({key.tombstone_hash for key in match_keys})
        written.update(
            key.seq
            for key in match_keys
            if (at := purged_at.get(key.tombstone_hash)) is not None
            and (key.is_exact or key.is_time_uncertain or key.at <= at)
        )
    rejects = [reject for each in built for reject in each.rejects]
    kept = [reject for reject in rejects if not is_purged(marks, dataset, own_gateway, reject.line)]
    skipped = frozenset(seq for each in built for seq in each.purged)
    return PurgedRows(frozenset(written), skipped, kept, len(rejects) - len(kept))


def is_purged(marks: Tombstones, dataset: Dataset, own_gateway: str | None, line: bytes) -> bool:
    """Return whether a rejected line belongs to a purge, as far as the line can be parsed."""
    is_in_purged_range = marks.purge_filter.predicate(dataset)
    if is_in_purged_range is None and not marks.has_parts:
        return False
    row = coerce_leniently(dataset, extract_row(line))
    if is_in_purged_range is not None and is_in_purged_range(row):
        return True
    key = hash_row_key(dataset, row, own_gateway)
    return key is not None and bool(marks.find({key}))


def rejects_path(home: Home, flush: Flush) -> Path:
    return segments.spool_folder(home, flush.dataset).rejected / f"{flush.id}.jsonl"


def _encode_reject(reject: Reject) -> bytes:
    kept: dict[str, object] = {"segment": reject.segment, "ordinal": reject.ordinal, "reason": reject.reason}
    try:
        kept["line"] = reject.line.decode().removesuffix("\n")
    except UnicodeDecodeError:
        kept["line_base64"] = base64.b64encode(reject.line).decode()
    return orjson.dumps(kept) + b"\n"


def count_rejects(home: Home, flush: Flush) -> int:
    path = rejects_path(home, flush)
    return segments.count_lines(path) if path.is_file() else 0


def count_all_rejects(home: Home, dataset: str) -> int:
    folder = segments.spool_folder(home, dataset).rejected
    return sum(segments.count_lines(path) for path in folder.glob("*.jsonl"))


def extract_row(line: bytes | str) -> Mapping[str, Any]:
    """Return the row of an envelope, or the line if it is a row itself, or an empty mapping."""
    try:
        found = canonical.loads(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("row"), dict):
        found = found["row"]
    return found if isinstance(found, dict) else {}


def coerce_leniently(dataset: Dataset, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid columns of a row, coerced, and the columns derived from them."""
    valid: dict[str, Any] = {}
    for name, value in row.items():
        if name in dataset.coercers and value is not None:
            try:
                valid[name] = dataset.coercers[name](value)
            except (ValueError, RecursionError):
                continue
    try:
        derived = dict(dataset.derive(valid, str(valid.get(GATEWAY, ""))))
    except Exception:
        # A plugin's rule may fail on an incomplete row.
        derived = {}
    # The gateway cannot be derived; without one the row is our own.
    derived.pop(GATEWAY, None)
    return {**derived, **valid}


def _drop_rows(
    target: OpenTable,
    flush: Flush,
    built: list[BuildResult],
    unwanted: frozenset[int],
    upgrades: Mapping[int, int],
    restored: Mapping[int, int],
) -> list[BuildResult]:
    results = list(built)
    work: list[tuple[int, DropRowsTask]] = []
    for index, each in enumerate(built):
        drop = unwanted.intersection(each.seqs)
        settles = {seq: upgrades[seq] for seq in drop if seq in upgrades}
        renumber = {seq: restored[seq] for seq in each.seqs if seq in restored} if restored else {}
        if drop and len(drop) == each.rows and not each.withdrawn and not settles:
            for file in each.files:
                file.path.unlink(missing_ok=True)
            results[index] = drop_keys(each, drop)
            results[index].files = []
        elif drop or renumber or each.withdrawn:
            output = OutputPaths(target.table.data_root, flush.id, min(each.seqs, default=0))
            folder = health.settlements_folder(target.home, flush.dataset)
            settlement = folder / f"{flush.id}-{min(settles, default=0)}.parquet"
            work.append((index, DropRowsTask(flush.dataset, each, output, drop, settles, settlement, renumber)))
    for (index, _), result in zip(work, target.lake.run([each for _, each in work]), strict=True):
        if isinstance(result, BuildFailure):
            raise Retryable(
                f"{flush.dataset}: could not remove duplicates from the new files: {result.reason}", kind="build_failed"
            )
        results[index] = result
    return results


@dataclass(frozen=True)
class DropRowsTask:
    dataset: str
    built: BuildResult
    output: OutputPaths
    drop: frozenset[int]
    settles: Mapping[int, int] = field(default_factory=dict)
    """Dropped native row → the live row of the lake that it settles."""
    settlement: Path | None = None
    """The file to store the settling rows in."""
    renumber: Mapping[int, int] = field(default_factory=dict)
    """Rows that get the sequence of a lost row."""

    def run(self) -> BuildResult:
        if self.settles:
            assert self.settlement is not None
            settlements.write_settlements(self.settlement, [file.path for file in self.built.files], self.settles)
        files = []
        for file in self.built.files:
            with pq.ParquetFile(arrow_source(file.path)) as source_file:
                seqs = source_file.read([SEQ]).column(SEQ)
                kept_rows = len(pc.filter(seqs, self._wanted(seqs)))
                if kept_rows == file.rows and not self.renumber:
                    files.append(file)
                    continue
                if kept_rows:
                    files.append(self._rewrite(file, source_file))
            file.path.unlink(missing_ok=True)
        return replace(drop_keys(self.built, self.drop), files=files, withdrawn=[])

    def _wanted(self, seqs: Any) -> Any:
        unwanted = pc.is_in(seqs, value_set=pa.array(self.drop, pa.int64()))
        for withdrawn in self.built.withdrawn:
            inside = pc.and_(pc.greater_equal(seqs, withdrawn.start), pc.less(seqs, withdrawn.stop))
            unwanted = pc.or_(unwanted, inside)
        return pc.invert(unwanted)

    def _rewrite(self, file: BuiltFile, source_file: pq.ParquetFile) -> BuiltFile:
        path = self.output.new_file(datasets.get(self.dataset), file.source, file.day)
        writer = DataFileWriter(path, source_file.schema_arrow.remove_metadata())
        try:
            for group in range(source_file.num_row_groups):
                rows = source_file.read_row_group(group)
                rows = rows.filter(self._wanted(rows.column(SEQ)))
                if self.renumber:
                    seqs = [self.renumber.get(seq, seq) for seq in rows.column(SEQ).to_pylist()]
                    place = rows.schema.get_field_index(SEQ)
                    rows = rows.set_column(place, rows.schema.field(place), pa.array(seqs, pa.int64()))
                if rows.num_rows:
                    writer.write(rows)
            return writer.close(file.source, file.day)
        except BaseException:
            writer.discard()
            raise


def drop_keys(built: BuildResult, drop: Container[int]) -> BuildResult:
    kept = replace(built, seqs=built.seqs[:0], keys=bytearray(), match_keys=built.match_keys.without(drop))
    packed = bytes(built.keys)
    for index, seq in enumerate(built.seqs):
        if seq not in drop:
            kept.seqs.append(seq)
            kept.keys += packed[index * KEY_BYTES : (index + 1) * KEY_BYTES]
    return kept
