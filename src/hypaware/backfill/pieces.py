"""Build the rows of one source: read, materialize, number and coerce them. Runs in Spark's tasks.

The k-th row of a source gets the k-th sequence of the source's range, every time it is read. If a source fails, the
failure is reported, its rows are withdrawn and the source stays due: rows and checkpoint are committed together or
not at all. Only a provider that breaks its contract stops its whole import.
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
    """Counts per row, by name, so that those of duplicates can be left out of the sum."""

    seqs: dict[str, array[int]] = field(default_factory=dict)
    values: dict[str, array[int]] = field(default_factory=dict)

    def add(self, seq: int, numbers: Mapping[str, int]) -> None:
        for name, number in numbers.items():
            if name not in self.seqs:
                self.seqs[name], self.values[name] = array("q"), array("q")
            if -(2**63) <= number < 2**63:
                self.seqs[name].append(seq)
                self.values[name].append(number)

    def remove_last(self, seq: int) -> None:
        """Remove the counts of the newest row, which was rejected."""
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
    """The result of reading one source."""

    path: str
    rows: int = 0
    items: int = 0
    sessions: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    """Reason → rows that were not imported because of a privacy setting."""
    events: list[Event] = field(default_factory=list)
    totals: Tally = field(default_factory=Tally)
    held: int = 0
    checkpoint: SourceMark | None = None
    """The new checkpoint of the source; None if the source stays due."""
    changed: str | None = None
    """Why the source could not be read now, if that is not the provider's fault."""
    error: str | None = None
    fault: ProviderFault | None = None

    def withdraw_rows(self) -> None:
        """Reset the counts of a source whose rows are withdrawn."""
        self.rows = self.items = self.held = 0
        self.sessions, self.totals, self.ignored = set(), Tally(), Counter()


def refuse_faults(reports: Iterable[SourceReport]) -> None:
    """Raise the first contract violation of a provider, before anything is committed."""
    for report in reports:
        if report.fault is not None:
            raise report.fault


@dataclass(frozen=True)
class SourcePiece:
    provider: str
    dataset: str
    base: int
    max_rows: int
    snapshot: Pinned
    environment: Mapping[str, str]
    gateway_id: str
    policy: Admission = EVERYTHING

    @property
    def first_seq(self) -> int:
        return self.base

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = SourceReport(path_text(self.snapshot.path))
        row_filter = self.policy.row_filter()
        try:
            with Reading(self.snapshot) as reading:
                reading.reset_if_rewritten()
                yield from self._read(reading, row_filter, dataset, built, report)
                _check(reading)
                report.skipped.update(reading.skipped)
                report.held = len(reading.held)
                report.checkpoint = self._checkpoint(reading, row_filter)
        except (SourceChanged, FileNotFoundError) as reason:
            report.changed = "changed" if isinstance(reason, SourceChanged) else "vanished"
        except OSError as error:
            report.changed = "unreadable"
            report.events.append(Event("unreadable", {"path": report.path, "reason": os.strerror(error.errno or 0)}))
        except ProviderFault as fault:
            report.fault = fault
        except (Exception, SystemExit) as error:
            report.error = f"{report.path}: {type(error).__name__}: {error}"
        if report.checkpoint is None:
            built.withdrawn.append(range(self.base, self.base + report.rows))
            built.rejects = [each for each in built.rejects if each.segment != report.path]
            report.withdraw_rows()
        built.reports.append(report)

    def _read(
        self, reading: Reading, row_filter: Door, dataset: Dataset, built: Built, report: SourceReport
    ) -> Iterator[tuple[int, Row]]:
        providers, materializers = _registries()
        if (entry := providers.get(self.provider)) is None:
            # It may have been installed since this worker started.
            _registries.cache_clear()
            providers, materializers = _registries()
            entry = providers.get(self.provider)
        if entry is None:
            raise ProviderFault("provider_error", f"Spark's workers do not know the provider {self.provider}")
        for raw in entry.provider.read(reading, self.environment):
            found = checked(raw, entry.provider, materializers)
            if isinstance(found, Event):
                if len(report.events) < _MAX_EVENTS:
                    report.events.append(found)
            elif found.dataset == self.dataset:
                report.items += 1
                report.sessions.add(found.provenance.native_id)
                materializer = materializers.get(found.kind)
                assert materializer is not None
                yield from self._rows_of(found, materializer, row_filter, dataset, built, report)

    def _rows_of(
        self,
        item: Item,
        materializer: Materializer,
        row_filter: Door,
        dataset: Dataset,
        built: Built,
        report: SourceReport,
    ) -> Iterator[tuple[int, Row]]:
        coerce, count = (complete_row if materializer.rows_are_coerced else coerce_row), materializer.tally
        for raw in rows_of(item, materializer, report.skipped):
            seq = self.base + report.rows
            report.rows += 1
            if report.rows > self.max_rows:
                message = f"{report.path} has more than {self.max_rows} rows, the maximum that its provider declared"
                raise ProviderFault("invalid_yield", message)
            # Its sequence stays unused: a row's sequence must not depend on the filter.
            if reason := row_filter.skip_reason(pair_of(raw)):
                report.ignored[reason] += 1
                continue
            if count is not None and (counts := count(raw)):
                report.totals.add(seq, counts)
            try:
                row = coerce(dataset, raw, self.gateway_id)
            except ValueError as error:
                rejected = row_filter.redact_text(_as_bytes(raw))
                built.rejects.append(Reject(report.path, report.rows - 1, str(error), rejected))
                report.totals.remove_last(seq)
                continue
            yield seq, row_filter.redact(dataset, row)

    def _checkpoint(self, reading: Reading, row_filter: Door) -> SourceMark:
        snapshot, window = reading.source, reading.effective_window()
        return SourceMark(
            self.provider,
            self.dataset,
            path_text(snapshot.path),
            snapshot.inode,
            snapshot.size,
            snapshot.mtime_ns,
            reading.consumed,
            reading.consumed_hash,
            tuple(sorted(reading.held)),
            snapshot.quiet,
            tuple(reading.left_out),
            window.since,
            window.until,
            both(snapshot.ignored, row_filter.ignored),
        )


def _as_bytes(raw: Row) -> bytes:
    """Return a rejected row as bytes, even if it is not JSON."""
    try:
        return orjson.dumps(raw, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(raw).encode("utf-8", "backslashreplace")


def _check(reading: Reading) -> None:
    """Check the values that the provider set on the reader, which become the checkpoint and the report."""
    held, skipped, consumed = reading.held, reading.skipped, reading.consumed
    if not isinstance(held, set) or not all(isinstance(key, str) for key in held):
        raise ProviderFault("invalid_yield", "`held` must be a set of text")
    if not all(isinstance(reason, str) and type(count) is int for reason, count in skipped.items()):
        raise ProviderFault("invalid_yield", "`skipped` must count reasons")
    if type(consumed) is not int or not 0 <= consumed <= reading.source.size:
        raise ProviderFault(
            "invalid_yield", f"`consumed` is {consumed}, but the source has {reading.source.size} bytes"
        )


@cache
def _registries() -> tuple[Providers, Materializers]:
    return registry.providers(), registry.materializers()


def load_registries() -> None:
    """Load the plugins before workers are forked, so that all workers share them."""
    _registries()
