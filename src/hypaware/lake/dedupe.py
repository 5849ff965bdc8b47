"""Deduplication: find the rows of a flush that the lake already has.

**By dedupe key.** The row with the lowest sequence of a key is kept, but a native row before a live row. A flush is
compared with committed rows only, never with the spool: its rows come from the spool and would match themselves. If the
lake's row is live, the native row settles it, as below.

**By match key.** A live row and a native row that share a match key record the same part, and each part has one row. If
both are new, the native row is kept. A new live row that matches a native row of the lake is dropped. A new native row
that matches a live row of the lake is not added either: the next compaction gives its columns to the live row
(`settlements`), which keeps its sequence, so nothing is delivered twice. Of two live rows of a part, one with the
client's id and one without, the first is kept, and the native row settles it.

**Copies.** A fork's transcript repeats parts of another session. They are duplicates by key, but their match keys are
kept, so that the history of the fork, seen live, matches them.

A table has no match keys until its first live row arrives. Then `enable_matching` indexes all rows of the table, and
from then on builds record match keys of native rows too.

@ref keys#matching
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, key_index, lost_rows, settlements
from hypaware.lake.build import BuildFailure, BuildResult
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.parquet import read_batches
from hypaware.lake.row_keys import MatchKey, MatchKeys, unpack_keys
from hypaware.lake.table import LakeBackend, LakeTable
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset, hash_key, hash_row_key, is_own_row

# Equal texts that are further apart do not match, unless their time is uncertain.
MATCH_WINDOW_SECONDS = 3600
# Of very many equal texts only the first are compared; they match in order.
_MAX_CANDIDATES = 100
_FILES_PER_SCAN = 16


def open_index(home: Home, lake: LakeBackend, table: LakeTable, dataset: Dataset) -> KeyIndex:
    """Open the key index, caught up with the table's floor and with the pending settlements."""
    index, name = KeyIndex(home.keys), dataset.name
    try:
        through = index.indexed_through(name, table.uuid)
        if through is None and index.table_uuid(name) != table.rebuilt_from:
            index.close()
            key_index.remove_index(home.keys)
            index, through = KeyIndex(home.keys), 0
        elif through is None or through > table.floor:
            index.restart(name, table.uuid, table.floor)
            through = 0
        if through < table.floor:
            lost_rows.forget_restored(home, index)
            _index_new_rows(home, lake, index, table, dataset, through)
        _index_settlements(home, index, table, dataset)
    except BaseException:
        index.close()
        raise
    return index


def _index_new_rows(
    home: Home, lake: LakeBackend, index: KeyIndex, table: LakeTable, dataset: Dataset, after: int
) -> None:
    """Index the lake's rows above a sequence. `through` is updated last, so an interrupted run starts over."""
    enabled = index.has_match_keys(dataset.name)
    has_live = False
    for result in scan_table_keys(home, lake, table, dataset, after, with_match_keys=enabled):
        has_live = has_live or any(result.reports)
        with index.stage(unpack_keys(result.keys, result.seqs), result.match_keys) as commit:
            commit(dataset.name, table.uuid, after)
    if has_live and not enabled:
        enable_matching(home, lake, index, table, dataset)
    index.add(dataset.name, table.uuid, table.floor, ())


def _index_settlements(home: Home, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """Index the keys that rows will have once their pending settlements are applied."""
    if dataset.match_rules is None:
        return
    pending = {f"{dataset.name}/{path.name}": path for path in health.list_settlements(home, dataset.name)}
    known = index.indexed_settlements(dataset.name)
    if pending.keys() == known:
        return
    read: dict[str, list[tuple[bytes, int]]] = {}
    for name in sorted(pending.keys() - known):
        # Skip an unreadable one; the next compaction reports and quarantines it.
        with suppress(settlements.DamagedSettlement):
            read[name] = list(settlements.read_settlement_keys(dataset, pending[name], table.gateway_id))
    # A row that a rollback removed cannot be settled; its native row may be imported again.
    found = [(key, seq) for keys in read.values() for key, seq in keys if seq <= table.floor]
    index.add_settlements(dataset.name, found, (known & pending.keys()) | read.keys())


@dataclass
class KeyMatches:
    """The rows of a flush whose key a row of the lake or another row of the flush has."""

    duplicates: set[int] = field(default_factory=set)
    kept: dict[int, int] = field(default_factory=dict)
    """Duplicate → the row of the same key that is kept."""
    superseded: dict[int, int] = field(default_factory=dict)
    """New live row → the new native row of the same key."""
    upgrades: dict[int, int] = field(default_factory=dict)
    """New native row → the live row of the lake that it settles."""
    settled_keys: list[bytes] = field(default_factory=list)
    """The keys of `upgrades`."""

    @property
    def excluded(self) -> frozenset[int]:
        """Rows that are not matched by match key."""
        return frozenset(self.duplicates.union(self.superseded, self.upgrades))


def find_duplicates(index: KeyIndex, results: Sequence[BuildResult], purged: Container[int] = ()) -> KeyMatches:
    """Match the rows of a flush, except for the `purged` ones, with each other and with rows of the lake by key."""
    keys = ((key, seq) for result in results for key, seq in unpack_keys(result.keys, result.seqs))
    found = sorted((pair for pair in keys if pair[1] not in purged), key=itemgetter(1))
    with_live = (result.match_keys for result in results if result.match_keys.has_live)
    live = {each.seq for match_keys in with_live for each in match_keys if each.is_live or each.is_unsettled}
    known = index.find(key for key, _ in found)
    unsettled = index.find_unsettled(known)
    if unsettled:
        # A lost row is restored instead.
        lost = index.list_lost()
        unsettled = {key: seq for key, seq in unsettled.items() if seq not in lost}
    matches, kept = KeyMatches(), dict[bytes, int]()
    for key, seq in found:
        if seq not in live and key in unsettled:
            matches.upgrades[seq] = unsettled.pop(key)
            matches.settled_keys.append(key)
        elif key not in known and key not in kept:
            kept[key] = seq
        elif key not in known and seq not in live and kept[key] in live:
            matches.superseded[kept[key]] = seq
            kept[key] = seq
        else:
            matches.duplicates.add(seq)
            matches.kept[seq] = known[key] if key in known else kept[key]
    return matches


def find_copies(index: KeyIndex, results: Sequence[BuildResult], by_key: KeyMatches) -> list[MatchKey]:
    """Return the match keys of duplicates that a fork copied: the row that is kept is one of another session.

    Match keys include the session, so a duplicate from the same session shares one with the row that is kept.
    """
    native = [each for result in results for each in result.match_keys if not (each.is_live or each.is_unsettled)]
    repeated = [each for each in native if each.seq in by_key.duplicates]
    if not repeated:
        return []
    stored = index.find_all(each.hash for each in repeated)
    copied = {each.hash for each in stored if each.is_copy}
    known = {(each.hash, each.seq) for each in (*stored, *native)}
    own = {each.seq for each in repeated if each.hash in copied or (each.hash, by_key.kept[each.seq]) in known}
    return [each.as_copy() for each in repeated if each.seq not in own]


def enable_matching(home: Home, lake: LakeBackend, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """Start keeping match keys of a dataset. Index the lake's rows first, in batches, as other jobs use the index."""
    for result in scan_table_keys(home, lake, table, dataset, with_match_keys=True):
        with index.transaction() as db:
            key_index.insert_match_keys(db, result.match_keys, ())
    index.enable_matching(dataset.name)


def add_native_keys(
    lake: LakeBackend, table: LakeTable, dataset: Dataset, results: Sequence[BuildResult]
) -> list[BuildResult]:
    """Add the match keys of native rows to the results of a build that did not record them.

    The files still have the rows of withdrawn sources, which will not be committed: nothing may match those.
    """
    found = []
    for result in results:
        match_keys = MatchKeys()
        paths = [file.path for file in result.files]
        for scanned in scan_keys(lake, table, dataset, paths, with_match_keys=True):
            for match_key in scanned.match_keys:
                if not any(match_key.seq in each for each in result.withdrawn):
                    match_keys.add(match_key)
        found.append(replace(result, match_keys=match_keys))
    return found


@dataclass(frozen=True)
class Matches:
    superseded: Mapping[int, int] = field(default_factory=dict)
    """New live row → the row that is kept instead of it, new or in the lake."""
    upgrades: Mapping[int, int] = field(default_factory=dict)
    """New native row → the live row of the lake that it settles."""

    @property
    def matched(self) -> list[int]:
        """Rows that are matched and cannot match again, new or in the lake."""
        return [*self.superseded.values(), *self.upgrades.values()]


def match_rows(new: Iterable[MatchKey], known: Iterable[MatchKey]) -> Matches:
    """Match `new` rows (deduplicated, by sequence) with each other and with `known` unmatched rows of the lake."""
    unmatched = _Unmatched()
    in_lake = set()
    for match_key in known:
        in_lake.add(match_key.seq)
        unmatched.add(match_key)
    superseded: dict[int, int] = {}
    upgrades: dict[int, int] = {}
    for seq, keys in groupby(new, attrgetter("seq")):
        row_keys = list(keys)
        partner = unmatched.pop_best(row_keys)
        if partner is None:
            for match_key in row_keys:
                unmatched.add(match_key)
        elif row_keys[0].is_live or (partner.seq in in_lake and row_keys[-1].is_unsettled):
            superseded[seq] = partner.seq
        elif partner.seq in in_lake:
            upgrades[seq] = partner.seq
        else:
            superseded[partner.seq] = seq
    return Matches(superseded, upgrades)


class _Unmatched:
    def __init__(self) -> None:
        self._by_hash: defaultdict[tuple[bytes, bool], dict[int, MatchKey]] = defaultdict(dict)
        self._lookups: defaultdict[int, list[tuple[bytes, bool]]] = defaultdict(list)

    def add(self, match_key: MatchKey) -> None:
        lookup = (match_key.hash, match_key.is_live)
        self._by_hash[lookup][match_key.seq] = match_key
        self._lookups[match_key.seq].append(lookup)

    def pop_best(self, row_keys: list[MatchKey]) -> MatchKey | None:
        """Remove and return the best match of a row, or return None."""
        for match_key in row_keys:
            others = self._by_hash.get((match_key.hash, not match_key.is_live), {}).values()
            candidates = {
                distance: other
                for other in islice(others, _MAX_CANDIDATES)
                if (distance := _match_distance(match_key, other)) is not None
            }
            if candidates:
                best = candidates[min(candidates)]
                for lookup in self._lookups.pop(best.seq):
                    self._by_hash[lookup].pop(best.seq, None)
                return best
        return None


def _match_distance(one: MatchKey, other: MatchKey) -> tuple[bool, int, int] | None:
    """Order candidates by their distance in time if it is certain, otherwise by sequence. None: too far apart."""
    timeless = one.is_exact or one.is_time_uncertain or other.is_time_uncertain
    # Requests repeat a part only in their history, so two live rows with their own times are two parts.
    if not timeless and (one.is_shown or other.is_shown):
        return None
    seconds = 0 if timeless else abs(one.at - other.at)
    return (other.is_time_uncertain, seconds, other.seq) if seconds <= MATCH_WINDOW_SECONDS else None


@dataclass(frozen=True)
class KeyScanTask:
    """Read the keys of a data file's rows above a sequence, including those that settled rows had before.

    `reports` is `[True]` if there is a live row.
    """

    dataset: str
    path: Path
    after: int = 0
    own_gateway: str | None = None
    with_match_keys: bool = False

    def run(self) -> BuildResult:
        dataset, built = datasets.get(self.dataset), BuildResult()
        rules = dataset.match_rules
        columns = [SEQ, GATEWAY, dataset.key_column, *dataset.key_parts]
        if rules is not None:
            columns += [dataset.time_column, *rules.columns] if self.with_match_keys else [rules.marker_column]
        has_live = False
        for batch in read_batches(self.path, list(dict.fromkeys(columns))):
            for row in batch.to_pylist():
                if (seq := row[SEQ]) is None or seq <= self.after:
                    continue
                keys = [hash_row_key(dataset, row, self.own_gateway)]
                # Rows of other gateways were matched there.
                if rules is not None and is_own_row(row, self.own_gateway):
                    keys += [hash_key(dataset.name, key) for key in rules.previous_keys(row)]
                    has_live = has_live or rules.may_be_live(row)
                    if self.with_match_keys:
                        built.match_keys.record(dataset, row, seq)
                for key in filter(None, keys):
                    built.seqs.append(seq)
                    built.keys += key
        built.reports = [has_live]
        return built


def scan_table_keys(
    home: Home, lake: LakeBackend, table: LakeTable, dataset: Dataset, after: int = 0, *, with_match_keys: bool = False
) -> Iterator[BuildResult]:
    """Yield the keys of all rows above a sequence, as `KeyScanTask` returns them, some files at a time."""
    entry = metadata.find_table(home, dataset.name)
    files = metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else []
    paths = [file.path for file in files if file.max_seq is None or file.max_seq > after]
    for start in range(0, len(paths), _FILES_PER_SCAN):
        some = paths[start : start + _FILES_PER_SCAN]
        yield from scan_keys(lake, table, dataset, some, after, with_match_keys=with_match_keys)


def scan_keys(
    lake: LakeBackend,
    table: LakeTable,
    dataset: Dataset,
    paths: Sequence[Path],
    after: int = 0,
    *,
    with_match_keys: bool = False,
) -> Iterator[BuildResult]:
    tasks = [KeyScanTask(dataset.name, path, after, table.gateway_id, with_match_keys) for path in paths]
    for result in lake.run(tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{dataset.name}: could not read rows of the lake: {result.reason}", kind="scan_failed")
        yield result
