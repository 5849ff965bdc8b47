"""Settlements that wait for a compaction: which files hold their rows, and what becomes of them afterwards.

A settlement names rows by their sequences; the files that hold one are written again, however good they are. It is done
when its row was settled, or is nowhere: then its native row goes back to the spool, as if it had just come, unless
retention has dropped what it is a record of. A settlement that cannot be read goes, and that is told; transcripts tell
its rows again.

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
from hypaware.lake import keyring, match_index, metadata, recover, settlement_files, settlements
from hypaware.lake.committer import LakeTable
from hypaware.lake.metadata import DataFile
from hypaware.lake.rewrite import read_columns
from hypaware.lake.settlements import Amendment, Damaged
from hypaware.maintain.work import Work
from hypaware.model.datasets import SEQ, Dataset
from hypaware.spool.writer import Spool


@dataclass
class Pending:
    """What waited when it was read; what comes later waits for the next one."""

    dataset: Dataset
    targets: dict[Path, dict[int, str]] = field(default_factory=dict)
    """Of each settlement, the rows that are not settled yet: sequence → key of its native row."""
    damaged: list[Path] = field(default_factory=list)
    _open_in: dict[str, frozenset[int]] = field(default_factory=dict)
    _unreadable: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, home: Home, dataset: Dataset) -> Pending:
        found = cls(dataset)
        for path in settlement_files.files(home, dataset.name) if dataset.settling else ():
            try:
                found.targets[path] = settlements.targets(dataset, path)
            except Damaged:
                found.damaged.append(path)
        return found

    def __bool__(self) -> bool:
        return bool(self.targets or self.damaged)

    @property
    def rows(self) -> int:
        return sum(map(len, self.targets.values()))

    def concerns(self, file: DataFile) -> bool:
        """Whether the file holds a row that is to be settled."""
        return not self._wanted.isdisjoint(self._open(file))

    def amendment(self, files: Iterable[DataFile]) -> Amendment | None:
        held = frozenset().union(*map(self._open, files))
        paths = [path for path, wanted in self.targets.items() if not held.isdisjoint(wanted)]
        return Amendment(self.dataset.name, tuple(paths)) if paths else None

    def carried_out(self, files: Iterable[DataFile]) -> None:
        """The files were written again, and that is committed."""
        self._done(frozenset().union(*map(self._open, files)))

    def lost(self, live: Iterable[DataFile]) -> set[int]:
        """Those whose rows are in no file, or are not open; a file that cannot be read may hold any of its range."""
        known: set[int] = set()
        for file in live:
            known |= self._open(file)
            if file.location in self._unreadable:
                known |= set(self._in_range(file))
        return self._wanted - known

    def forget_missing(self) -> None:
        """Settlements of a flush that turned out not to have landed."""
        self.targets = {path: wanted for path, wanted in self.targets.items() if path.exists()}

    def _done(self, seqs: Collection[int]) -> None:
        for wanted in self.targets.values():
            for seq in seqs:
                wanted.pop(seq, None)

    @property
    def _wanted(self) -> set[int]:
        return set().union(*self.targets.values())

    def _open(self, file: DataFile) -> frozenset[int]:
        """Those that the file holds, as they were recorded."""
        if file.location not in self._open_in:
            self._open_in[file.location] = self._look(file)
        return self._open_in[file.location]

    def _look(self, file: DataFile) -> frozenset[int]:
        """By its range first, then by its rows: neighbours in the order of sequences may be of other days."""
        settling, near = self.dataset.settling, set(self._in_range(file))
        if not near or settling is None:
            return frozenset()
        try:
            rows = read_columns(file.path, [SEQ, self.dataset.key_column, settling.telltale])
        except LakeError:
            self._unreadable.add(file.location)
            return frozenset()
        here = [row for row in rows.to_pylist() if row[SEQ] in near]
        still = frozenset(row[SEQ] for row in here if settling.may_be_fallback(row))
        keys = {(row[SEQ], row[self.dataset.key_column]) for row in here if row[SEQ] not in still}
        # An earlier run has settled them, and was killed before it could say so.
        self._done({seq for wanted in self.targets.values() for seq, key in wanted.items() if (seq, key) in keys})
        return still

    def _in_range(self, file: DataFile) -> list[int]:
        wanted = sorted(self._wanted)
        if file.min_seq is None or file.max_seq is None:
            return wanted
        return wanted[bisect_left(wanted, file.min_seq) : bisect_right(wanted, file.max_seq)]


def begin(work: Work) -> Pending:
    """What waits, without what an unfinished flush has left."""
    if settlement_files.files(work.home, work.dataset.name) and not work.dry_run:
        with work.changing() as table:
            recover.settle_unfinished(work.home, work.store, table, work.dataset.name)
    return Pending.of(work.home, work.dataset)


def finish(work: Work, pending: Pending) -> None:
    """Forgets what was carried out. Nobody takes settlements in meanwhile, so none is missed."""
    if not pending:
        return
    with work.changing() as table:
        recover.settle_unfinished(work.home, work.store, table, work.dataset.name)
        pending.forget_missing()
        lost = pending.lost(work.files())
        # From here on only the index knows the ids that a settlement has told.
        with closing(keyring.opened(work.home, work.lake, table, work.dataset)) as index:
            _give_back(work, pending, lost)
            gone = [pair for path in pending.targets for pair in _keys(work, path, table) if pair[1] in lost]
            with index.changing() as db:
                db.executemany("DELETE FROM keys WHERE hash = ? AND seq = ?", gone)
                match_index.forget(db, ", ".join(map(str, sorted(lost))))
        for path, wanted in pending.targets.items():
            left = wanted.keys() - lost
            if left:
                settlements.keep_only(path, left)
        done = [path for path, wanted in pending.targets.items() if wanted.keys() <= lost]
        settlements.remove([*done, *pending.damaged])


def _keys(work: Work, path: Path, table: LakeTable) -> Iterable[tuple[bytes, int]]:
    return settlements.keys(work.dataset, path, table.gateway_id)


def _give_back(work: Work, pending: Pending, lost: set[int]) -> None:
    """Native rows whose row is gone for another reason than its age."""
    kept_from = metadata.retained_from(work.home, work.dataset.name)
    rows = [row for path in pending.targets for row in settlements.native_rows(work.dataset, path, lost)]
    still = [row for row in rows if not kept_from or str(row[work.dataset.time_column])[:10] >= kept_from]
    if still:
        with Spool(work.home) as spool:
            spool.append(work.dataset.name, still)
        work.note(f"{work.dataset.name}: {len(still):,} rows come in again: what they should have settled is gone")
