"""Deduplication: find the rows of a flush that the lake already has.

**By dedupe key.** The row with the lowest sequence of a key is kept. A flush is compared with committed rows only,
never with the spool: its rows come from the spool and would match themselves.

**By match key.** A live row and a native row that share a match key record the same part (`model.matching`), and each
part has one row. If both are new, the native row is kept. A new live row that matches a native row of the lake is
dropped. A new native row that matches a live row of the lake is not added either: the next compaction gives its columns
to the live row (`settlements`), which keeps its sequence, so nothing is delivered twice. Matching goes through the rows
by sequence and gives each the best match that is still available.

A table has no match keys until its first live row without an own id arrives. Then `enable_matching` indexes all rows of
the table, and from then on builds record match keys of native rows too.

@ref keys#matching
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, pairwise
from operator import attrgetter, itemgetter

from hypaware.home import Home
from hypaware.lake import health, key_index, settlements
from hypaware.lake.build import BuildResult
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import MatchKey, MatchKeys, unpack_keys
from hypaware.lake.scan import scan_keys, scan_table_keys
from hypaware.lake.table import LakeBackend, LakeTable
from hypaware.model.datasets import Dataset

# Equal texts that are further apart do not match, unless their time is uncertain.
MATCH_WINDOW_SECONDS = 3600
# Of very many equal texts only the first are compared; they match in order.
_MAX_CANDIDATES = 100


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
        with index.stage(unpack_keys(result.keys, result.seqs), result.match_keys) as staged:
            staged.commit(dataset.name, table.uuid, after)
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


def find_duplicates(index: KeyIndex, results: Sequence[BuildResult]) -> frozenset[int]:
    """Return the sequences of rows whose key a committed row or an earlier row of this flush has."""
    seen: set[bytes] = set(index.find(key for result in results for key, _ in unpack_keys(result.keys, result.seqs)))
    duplicate_seqs = []
    for key, seq in _keys_by_sequence(results):
        if key in seen:
            duplicate_seqs.append(seq)
        else:
            seen.add(key)
    return frozenset(duplicate_seqs)


def _keys_by_sequence(results: Sequence[BuildResult]) -> Iterable[tuple[bytes, int]]:
    """Return (key, sequence) by sequence. Sort only if necessary: consecutive results usually are in order."""
    found = [pair for result in results for pair in unpack_keys(result.keys, result.seqs)]
    if any(before[1] > after[1] for before, after in pairwise(found)):
        found.sort(key=itemgetter(1))
    return found


def enable_matching(home: Home, lake: LakeBackend, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """Start keeping match keys of a dataset. Index the lake's rows first, in batches, as other jobs use the index."""
    for result in scan_table_keys(home, lake, table, dataset, with_match_keys=True):
        index.add_match_keys(result.match_keys)
    index.enable_matching(dataset.name)


def add_native_keys(
    lake: LakeBackend, table: LakeTable, dataset: Dataset, results: Sequence[BuildResult]
) -> list[BuildResult]:
    """Add the match keys of native rows to the results of a build that did not record them."""
    found = []
    for result in results:
        match_keys = MatchKeys()
        paths = [file.path for file in result.files]
        for scanned in scan_keys(lake, table, dataset, paths, with_match_keys=True):
            for match_key in scanned.match_keys:
                match_keys.add(match_key)
        found.append(replace(result, match_keys=match_keys))
    return found


def find_matches(index: KeyIndex, results: Sequence[BuildResult], excluded: frozenset[int]) -> Matches:
    """Match the rows of a flush, except for the `excluded` ones, with each other and with rows of the lake."""
    if not any(len(result.match_keys) for result in results):
        return Matches()
    new = sorted(
        (each for result in results for each in result.match_keys if each.seq not in excluded),
        key=lambda match_key: match_key.seq,
    )
    known = index.find_unmatched(match_key.hash for match_key in new)
    return match_rows(new, known)


@dataclass(frozen=True)
class Matches:
    superseded: Mapping[int, int] = field(default_factory=dict)
    """New live row → its native row, new or in the lake."""
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
        elif row_keys[0].is_live:
            superseded[seq] = partner.seq
        elif partner.seq in in_lake:
            upgrades[seq] = partner.seq
        else:
            superseded[partner.seq] = seq
    return Matches(superseded, upgrades)


class _Unmatched:
    """Rows without a match yet, by match key."""

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
            candidates = [other for other in islice(others, _MAX_CANDIDATES) if _may_match(match_key, other)]
            if candidates:
                best = min(candidates, key=lambda other: _match_distance(match_key, other))
                for lookup in self._lookups.pop(best.seq):
                    self._by_hash[lookup].pop(best.seq, None)
                return best
        return None


def _may_match(one: MatchKey, other: MatchKey) -> bool:
    return (
        one.is_exact
        or one.is_time_uncertain
        or other.is_time_uncertain
        or abs(one.at - other.at) <= MATCH_WINDOW_SECONDS
    )


def _match_distance(one: MatchKey, other: MatchKey) -> tuple[bool, int, int]:
    """Order candidates by their distance in time if it is certain, otherwise by sequence."""
    timeless = one.is_exact or one.is_time_uncertain or other.is_time_uncertain
    return other.is_time_uncertain, 0 if timeless else abs(one.at - other.at), other.seq
