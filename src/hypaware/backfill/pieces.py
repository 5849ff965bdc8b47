"""A pinned source as a piece of a build: read, made into rows, numbered, coerced. Runs in Spark's tasks.

The k-th row that a source gives has the k-th number of its block, each time it is read. Trouble with one source is
told, takes back the rows that it gave, and leaves it due: rows and mark come together or not at all. Only a provider
that breaks its contract stops its whole import.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import orjson

from hypaware.backfill import registry
from hypaware.backfill.admission import EVERYTHING, Admission, Door, both, pair_of
from hypaware.backfill.check import ProviderFault, checked, rows_of
from hypaware.backfill.materializer import Materializer
from hypaware.backfill.pinned import Pinned
from hypaware.backfill.pinning import path_text
from hypaware.backfill.provider import Event, Item
from hypaware.backfill.reading import Reading, SourceChanged
from hypaware.backfill.registry import Materializers, Providers
from hypaware.lake.build import Built, Reject
from hypaware.model.coerce import coerce_row, complete_row
from hypaware.model.datasets import Dataset, Row
from hypaware.state.source_mark import SourceMark

_MAX_EVENTS = 100


@dataclass
class Tally:
    """Numbers of single rows, by name, such that those of duplicates can be left out of the sum."""

    seqs: dict[str, array[int]] = field(default_factory=dict)
    values: dict[str, array[int]] = field(default_factory=dict)

    def add(self, seq: int, numbers: Mapping[str, int]) -> None:
        for name, number in numbers.items():
            if name not in self.seqs:
                self.seqs[name], self.values[name] = array("q"), array("q")
            if -(2**63) <= number < 2**63:
                self.seqs[name].append(seq)
                self.values[name].append(number)

    def forget(self, seq: int) -> None:
        """The newest row was refused after all."""
        for name, seqs in self.seqs.items():
            if seqs and seqs[-1] == seq:
                seqs.pop()
                self.values[name].pop()

    def total(self, without: Collection[int]) -> Counter[str]:
        return Counter(
            {
                name: sum(v for s, v in zip(seqs, self.values[name], strict=True) if s not in without)
                if without
                else sum(self.values[name])
                for name, seqs in self.seqs.items()
            }
        )


@dataclass
class SourceReport:
    """What reading one source came to."""

    path: str
    rows: int = 0
    items: int = 0
    sessions: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    """Reason → rows that were not taken in because their user does not want it."""
    events: list[Event] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    held: int = 0
    mark: SourceMark | None = None
    """What this import takes of the source; without one it stays due."""
    changed: str | None = None
    """Why it could not be read now: not the provider's fault."""
    error: str | None = None
    fault: ProviderFault | None = None

    def forget_rows(self) -> None:
        """They were taken back."""
        self.rows = self.items = self.held = 0
        self.sessions, self.tally, self.ignored = set(), Tally(), Counter()


def refuse_faults(reports: Iterable[SourceReport]) -> None:
    """A provider that broke its contract ends here, before anything is committed."""
    for report in reports:
        if report.fault is not None:
            raise report.fault


@dataclass(frozen=True)
class SourcePiece:
    provider: str
    dataset: str
    base: int
    max_rows: int
    pinned: Pinned
    environment: Mapping[str, str]
    gateway_id: str
    admission: Admission = EVERYTHING

    @property
    def first_seq(self) -> int:
        return self.base

    @property
    def suspects(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = SourceReport(path_text(self.pinned.path))
        door = self.admission.door()
        try:
            with Reading(self.pinned) as reading:
                reading.start_over_if_rewritten()
                yield from self._read(reading, door, dataset, built, report)
                _check(reading)
                report.skipped.update(reading.skipped)
                report.held = len(reading.held)
                report.mark = self._mark(reading, door)
        except (SourceChanged, FileNotFoundError) as reason:
            report.changed = "changed" if isinstance(reason, SourceChanged) else "vanished"
        except OSError as error:
            report.changed = "unreadable"
            report.events.append(Event("unreadable", {"path": report.path, "reason": os.strerror(error.errno or 0)}))
        except ProviderFault as fault:
            report.fault = fault
        except (Exception, SystemExit) as error:
            report.error = f"{report.path}: {type(error).__name__}: {error}"
        if report.mark is None:
            built.withdrawn.append(range(self.base, self.base + report.rows))
            built.rejects = [each for each in built.rejects if each.segment != report.path]
            report.forget_rows()
        built.notes.append(report)

    def _read(
        self, reading: Reading, door: Door, dataset: Dataset, built: Built, report: SourceReport
    ) -> Iterator[tuple[int, Row]]:
        providers, materializers = _registries()
        if (entry := providers.get(self.provider)) is None:
            # It may have been installed since this worker looked.
            _registries.cache_clear()
            providers, materializers = _registries()
            entry = providers.get(self.provider)
        if entry is None:
            raise ProviderFault("provider_error", f"the workers know no provider {self.provider}")
        for thing in entry.provider.read(reading, self.environment):
            found = checked(thing, entry.provider, materializers)
            if isinstance(found, Event):
                if len(report.events) < _MAX_EVENTS:
                    report.events.append(found)
            elif found.dataset == self.dataset:
                report.items += 1
                report.sessions.add(found.provenance.native_id)
                materializer = materializers.get(found.kind)
                assert materializer is not None
                yield from self._rows_of(found, materializer, door, dataset, built, report)

    def _rows_of(
        self, item: Item, materializer: Materializer, door: Door, dataset: Dataset, built: Built, report: SourceReport
    ) -> Iterator[tuple[int, Row]]:
        fitted, tally = (complete_row if materializer.judged else coerce_row), materializer.tally
        for raw in rows_of(item, materializer, report.skipped):
            seq = self.base + report.rows
            report.rows += 1
            if report.rows > self.max_rows:
                message = f"{report.path} gave more than {self.max_rows} rows, and its provider says that it has fewer"
                raise ProviderFault("invalid_yield", message)
            # Its number is left out: each row has the same one however it is judged.
            if why := door.why_not(pair_of(raw)):
                report.ignored[why] += 1
                continue
            if tally is not None and (numbers := tally(raw)):
                report.tally.add(seq, numbers)
            try:
                row = fitted(dataset, raw, self.gateway_id)
            except ValueError as reason:
                refused = door.text_as_kept(_as_bytes(raw))
                built.rejects.append(Reject(report.path, report.rows - 1, str(reason), refused))
                report.tally.forget(seq)
                continue
            yield seq, door.as_kept(dataset, row)

    def _mark(self, reading: Reading, door: Door) -> SourceMark:
        pinned, window = reading.source, reading.settle_window()
        return SourceMark(
            self.provider,
            self.dataset,
            path_text(pinned.path),
            pinned.inode,
            pinned.size,
            pinned.mtime_ns,
            reading.consumed,
            reading.taken_hash,
            tuple(sorted(reading.held)),
            pinned.quiet,
            tuple(reading.left_out),
            window.since,
            window.until,
            both(pinned.ignored, door.ignored),
        )


def _as_bytes(raw: Row) -> bytes:
    """A refused row as bytes, whatever is in it."""
    try:
        return orjson.dumps(raw, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(raw).encode("utf-8", "backslashreplace")


def _check(reading: Reading) -> None:
    """What a provider left behind in the reading becomes a mark and a report."""
    held, skipped, consumed = reading.held, reading.skipped, reading.consumed
    if not isinstance(held, set) or not all(isinstance(key, str) for key in held):
        raise ProviderFault("invalid_yield", "what it holds back is not named by text")
    if not all(isinstance(why, str) and type(count) is int for why, count in skipped.items()):
        raise ProviderFault("invalid_yield", "what it skipped is not counted by reasons")
    if type(consumed) is not int or not 0 <= consumed <= reading.source.size:
        raise ProviderFault("invalid_yield", f"it took {consumed} of {reading.source.size} bytes")


@cache
def _registries() -> tuple[Providers, Materializers]:
    return registry.providers(), registry.materializers()


def load_registries() -> None:
    """Before workers are forked: each of them has the plugins then."""
    _registries()
