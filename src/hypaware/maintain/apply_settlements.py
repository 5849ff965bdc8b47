"""Applying pending settlements: find the files that hold their rows, and clean up after the compaction.

A settlement identifies rows by sequence. It is done when its row has been updated or no longer exists. In the latter
case its native row returns to the spool as a new row, unless retention has dropped the day of the live row. A
settlement that cannot be read is removed and reported; importing the transcripts again restores its rows.

@ref keys#settlements
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake import commit, dedupe, health, key_index, settlements
from hypaware.lake.rewrite import read_columns
from hypaware.lake.settlements import DamagedSettlement, SettlementPatch
from hypaware.maintain.context import MaintenanceContext
from hypaware.model.datasets import SEQ, Dataset
from hypaware.spool.writer import Spool


@dataclass
class PendingSettlements:
    """The settlements that were pending when this was read; later ones wait for the next compaction."""

    dataset: Dataset
    targets: dict[Path, dict[int, str]] = field(default_factory=dict)
    """For each settlement file, the rows not yet updated: sequence → key of the native row."""
    damaged: list[Path] = field(default_factory=list)
    _open_by_file: dict[str, frozenset[int]] = field(default_factory=dict)
    _unreadable: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, home: Home, dataset: Dataset) -> PendingSettlements:
        pending = cls(dataset)
        for path in health.list_settlements(home, dataset.name) if dataset.match_rules else ():
            try:
                pending.targets[path] = settlements.read_targets(dataset, path)
            except DamagedSettlement:
                pending.damaged.append(path)
        return pending

    def __bool__(self) -> bool:
        return bool(self.targets or self.damaged)

    @property
    def rows(self) -> int:
        return sum(map(len, self.targets.values()))

    def affects(self, file: DataFile) -> bool:
        """Return whether the file holds a row with a pending settlement."""
        return not self._wanted.isdisjoint(self._open_rows(file))

    def amendment(self, files: Iterable[DataFile]) -> SettlementPatch | None:
        held = frozenset().union(*map(self._open_rows, files))
        paths = [path for path, wanted in self.targets.items() if not held.isdisjoint(wanted)]
        return SettlementPatch(self.dataset.name, tuple(paths)) if paths else None

    def mark_applied(self, files: Iterable[DataFile]) -> None:
        """Note that the files were rewritten and the rewrite is committed."""
        self._remove_targets(frozenset().union(*map(self._open_rows, files)))

    def missing(self, live: Iterable[DataFile]) -> set[int]:
        """Return the sequences whose row is in no file, or already updated.

        An unreadable file may hold any row of its range.
        """
        present: set[int] = set()
        for file in live:
            present |= self._open_rows(file)
            if file.location in self._unreadable:
                present |= set(self._in_range(file))
        return self._wanted - present

    def _remove_targets(self, seqs: Collection[int]) -> None:
        for wanted in self.targets.values():
            for seq in seqs:
                wanted.pop(seq, None)

    @property
    def _wanted(self) -> set[int]:
        return set().union(*self.targets.values())

    def _open_rows(self, file: DataFile) -> frozenset[int]:
        """Return the sequences of rows in the file that still have their recorded ids."""
        if file.location not in self._open_by_file:
            self._open_by_file[file.location] = self._find_open_rows(file)
        return self._open_by_file[file.location]

    def _find_open_rows(self, file: DataFile) -> frozenset[int]:
        """Check the file's sequence range first, then its rows: a range may cover rows of other files."""
        match_rules, in_range = self.dataset.match_rules, set(self._in_range(file))
        if not in_range or match_rules is None:
            return frozenset()
        try:
            rows = read_columns(file.path, [SEQ, self.dataset.key_column, match_rules.marker_column])
        except LakeError:
            self._unreadable.add(file.location)
            return frozenset()
        candidates = [row for row in rows.to_pylist() if row[SEQ] in in_range]
        open_rows = frozenset(row[SEQ] for row in candidates if match_rules.may_be_live(row))
        keys = {(row[SEQ], row[self.dataset.key_column]) for row in candidates if row[SEQ] not in open_rows}
        # An earlier run updated these rows and was killed before it could record that.
        self._remove_targets(
            {seq for wanted in self.targets.values() for seq, key in wanted.items() if (seq, key) in keys}
        )
        return open_rows

    def _in_range(self, file: DataFile) -> list[int]:
        wanted = sorted(self._wanted)
        if file.min_seq is None or file.max_seq is None:
            return wanted
        return wanted[bisect_left(wanted, file.min_seq) : bisect_right(wanted, file.max_seq)]


def read_pending(context: MaintenanceContext) -> PendingSettlements:
    """Read the pending settlements after recovering unfinished flushes."""
    if health.list_settlements(context.home, context.dataset.name) and not context.dry_run:
        with context.lock_table() as table:
            commit.finish_interrupted_flushes(context.home, context.store, table, context.dataset.name)
    return PendingSettlements.read(context.home, context.dataset)


def remove_applied(context: MaintenanceContext, pending: PendingSettlements) -> None:
    """Remove applied settlements. Holding the table's lock keeps new ones from arriving in between."""
    if not pending:
        return
    dataset = context.dataset
    with context.lock_table() as table:
        commit.finish_interrupted_flushes(context.home, context.store, table, dataset.name)
        # The settlements of a flush that turned out not to be committed are gone.
        pending.targets = {path: wanted for path, wanted in pending.targets.items() if path.exists()}
        missing = pending.missing(context.files())
        # From here on only the index knows the ids that a settlement recorded.
        with closing(dedupe.open_index(context.home, context.lake, table, dataset)) as index:
            # Native rows whose live row is gone for another reason than its age return to the spool.
            native = [row for path in pending.targets for row in settlements.read_native_rows(dataset, path, missing)]
            first_day = metadata.read_retention_start(context.home, dataset.name)
            kept = [row for row in native if not first_day or str(row[dataset.time_column])[:10] >= first_day]
            if kept:
                with Spool(context.home) as spool:
                    spool.append(dataset.name, kept)
                context.note(
                    f"{dataset.name}: returned {len(kept):,} native rows to the spool, their live rows are gone"
                )
            removed_keys = [
                pair
                for path in pending.targets
                for pair in settlements.read_settlement_keys(dataset, path, table.gateway_id)
                if pair[1] in missing
            ]
            with index.transaction() as db:
                db.executemany("DELETE FROM keys WHERE hash = ? AND seq = ?", removed_keys)
                key_index.remove_match_keys(db, ", ".join(map(str, sorted(missing))))
        for path, wanted in pending.targets.items():
            remaining = wanted.keys() - missing
            if remaining:
                settlements.retain_targets(path, remaining)
        done = [path for path, wanted in pending.targets.items() if wanted.keys() <= missing]
        settlements.remove_settlements([*done, *pending.damaged])
