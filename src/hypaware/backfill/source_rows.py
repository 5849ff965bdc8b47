"""The rows of one pinned source: read it with its provider, filter and coerce its rows, and make its checkpoint.

The k-th row of a source gets the k-th sequence of the source's range, every time it is read. If a source fails, its
rows are withdrawn and it stays due. Loads neither Spark nor PyArrow, so that the daemon can read sources too.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from hypaware.backfill import providers
from hypaware.backfill.providers import MaterializerRegistry, ProviderFault, ProviderRegistry
from hypaware.backfill.request import UNRESTRICTED, ImportFilter, ImportPolicy
from hypaware.backfill.survey import encode_path
from hypaware.clients.client import ImportItem, InvalidItem, Materializer, Provider, ProviderEvent
from hypaware.clients.database_source import read_database
from hypaware.clients.reader import SourceChanged, SourceReader, SourceSnapshot, is_database, read_pinned
from hypaware.home import machine_facts
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, coerce_row, complete_row
from hypaware.privacy.redact import redact_row
from hypaware.state.flushes import SourceCheckpoint
from hypaware.state.titles import SessionTitle

if TYPE_CHECKING:
    from hypaware.lake.build import BuildResult, BuildSettings, Reject, RowWriter

_MAX_EVENTS = 100


@dataclass(frozen=True)
class ImportContext:
    """The values that all tasks of an import share."""

    provider: str
    dataset: str
    environment: Mapping[str, str]
    gateway_id: str
    policy: ImportPolicy = UNRESTRICTED
    machine: str = ""
    """As in `SourceCheckpoint`."""


@dataclass
class RowTotals:
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
    path: str
    rows: int = 0
    items: int = 0
    sessions: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    """Reason → rows that were not imported because of a privacy setting."""
    ignored_sessions: set[str | None] = field(default_factory=set)
    """The sessions of those rows."""
    events: list[ProviderEvent] = field(default_factory=list)
    totals: RowTotals = field(default_factory=RowTotals)
    held: int = 0
    titles: list[SessionTitle] = field(default_factory=list)
    """The titles of sessions that no privacy setting excludes."""
    leaves: dict[str, str] = field(default_factory=dict)
    """Last messages → their sessions, of those sessions."""
    checkpoint: SourceCheckpoint | None = None
    """The new checkpoint of the source; None if the source stays due."""
    changed: str | None = None
    """Why the source could not be read now, if that is not the provider's fault."""
    error: str | None = None
    fault: ProviderFault | None = None


class SourceResult(Protocol):
    """The result of reading a source, apart from its rows; the result of a build is one."""

    rejects: list[Reject]
    reports: list[Any]
    withdrawn: list[range]


@dataclass(frozen=True)
class SourcePiece:
    """The input of a build task: one source and its range of sequences."""

    context: ImportContext
    first_seq: int
    max_rows: int
    snapshot: SourceSnapshot
    copy: Path | Exception | None = None
    """A copy of the pinned bytes, or why the driver could not read them (`lake.task_input`)."""

    def read_bytes(self) -> Iterator[bytes]:
        return read_database(self.snapshot) if is_database(self.snapshot.path) else read_pinned(self.snapshot)

    def rows(self, dataset: Dataset, built: SourceResult) -> Iterator[tuple[int, Row]]:
        report = SourceReport(encode_path(self.snapshot.path))
        row_filter = self.context.policy.row_filter()
        try:
            if isinstance(self.copy, Exception):
                raise self.copy
            with SourceReader(self.snapshot, self.copy) as reader:
                provider, materializers = self._find_provider()
                for raw in provider.read(reader, self.context.environment):
                    item = providers.validate_yield(raw, provider, materializers)
                    if isinstance(item, ImportItem):
                        if item.dataset == self.context.dataset:
                            report.items += 1
                            materializer = materializers.get(item.kind)
                            assert materializer is not None
                            yield from self._item_rows(item, materializer, row_filter, dataset, built, report)
                    elif len(report.events) < _MAX_EVENTS:
                        report.events.append(item)
                self._add_titles(reader, row_filter, report)
                checkpoint = self._checkpoint(reader, row_filter)
                report.skipped.update(reader.skipped)
                report.held = len(reader.held)
                report.checkpoint = checkpoint
        except SourceChanged:
            report.changed = "changed"
        except OSError as error:
            self._report_unreadable(error, report)
        except ProviderFault as fault:
            report.fault = fault
        except (Exception, SystemExit) as error:
            report.error = f"{report.path}: {type(error).__name__}: {error}"
        if report.checkpoint is None:
            self._withdraw(report, built)
        built.reports.append(report)

    def _report_unreadable(self, error: OSError, report: SourceReport) -> None:
        if isinstance(self.copy, Path):
            # The source itself has been read by the driver, and must not be reported as missing.
            machine = socket.gethostname()
            report.error = f"{report.path}: the Spark executor on {machine} cannot read a file: {error}"
        elif isinstance(error, FileNotFoundError):
            report.changed = "vanished"
        else:
            report.changed = "unreadable"
            facts = {"path": report.path, "reason": os.strerror(error.errno or 0)}
            report.events.append(ProviderEvent("unreadable", facts))

    def _find_provider(self) -> tuple[Provider, MaterializerRegistry]:
        known, materializers = load_registries()
        if (entry := known.get(self.context.provider)) is None:
            # It may have been installed since this worker started.
            load_registries.cache_clear()
            known, materializers = load_registries()
            entry = known.get(self.context.provider)
        if entry is None:
            message = f"Spark's workers do not know the provider {self.context.provider}"
            raise ProviderFault("provider_error", message)
        return entry.provider, materializers

    def _withdraw(self, report: SourceReport, built: SourceResult) -> None:
        """Withdraw the rows of a source that failed; it stays due."""
        built.withdrawn.append(range(self.first_seq, self.first_seq + report.rows))
        built.rejects = [each for each in built.rejects if each.segment != report.path]
        report.rows = report.items = report.held = 0
        report.sessions, report.totals, report.ignored = set(), RowTotals(), Counter()
        report.titles, report.leaves = [], {}

    def _item_rows(
        self,
        item: ImportItem,
        materializer: Materializer,
        row_filter: ImportFilter,
        dataset: Dataset,
        built: SourceResult,
        report: SourceReport,
    ) -> Iterator[tuple[int, Row]]:
        coerce, count = (complete_row if materializer.rows_are_coerced else coerce_row), materializer.tally
        try:
            for raw in materializer.materialize(item.value, item.provenance, report.skipped):
                seq = self.first_seq + report.rows
                report.rows += 1
                if report.rows > self.max_rows:
                    declared = f"{self.max_rows} rows, the maximum that its provider declared"
                    raise ProviderFault("invalid_yield", f"{report.path} has more than {declared}")
                cwd, session = raw.get("cwd"), raw.get("session_id")
                pair = cwd if isinstance(cwd, str) else None, session if isinstance(session, str) else None
                # Its sequence stays unused: a row's sequence must not depend on the filter.
                if why := row_filter.skip_reason(pair):
                    report.ignored[why] += 1
                    report.ignored_sessions.add(pair[1])
                    continue
                report.sessions.add(pair[1] or item.provenance.native_id)
                counts = count(raw) if count is not None else None
                try:
                    row = coerce(dataset, raw, self.context.gateway_id)
                except ValueError as error:
                    from hypaware.lake.build import Reject

                    rejected = row_filter.redact_text(_encode_rejected(raw))
                    built.rejects.append(Reject(report.path, report.rows - 1, str(error), rejected))
                    continue
                if counts:
                    report.totals.add(seq, counts)
                if row_filter.redaction is not None:
                    row, _ = redact_row(dataset, row, row_filter.redaction)
                if not machine_facts.has_questions():
                    yield seq, row
        except InvalidItem as reason:
            raise ProviderFault("invalid_yield", f"an item of kind {item.kind}: {reason}") from None

    def _add_titles(self, reader: SourceReader, row_filter: ImportFilter, report: SourceReport) -> None:
        """Add the titles of sessions, except for sessions of which anything is or was ignored."""
        hidden = {*report.ignored_sessions, *(session for _, session in reader.source.ignored)}
        for each in reader.titles:
            is_ignored = each.session_id and row_filter.skip_reason((each.cwd, each.session_id))
            if not is_ignored and each.session_id not in hidden:
                title = row_filter.redact_text(each.title.encode("utf-8", "replace")).decode("utf-8", "replace")
                report.titles.append(each._replace(title=title))
        for leaf, session in reader.leaves.items():
            if session not in hidden and not row_filter.skip_reason((None, session)):
                report.leaves[leaf] = session

    def _checkpoint(self, reader: SourceReader, row_filter: ImportFilter) -> SourceCheckpoint:
        """Return the new checkpoint; raise ProviderFault if the provider set invalid values on the reader."""
        held, skipped, consumed = reader.held, reader.skipped, reader.checkpoint_offset
        if not isinstance(held, set) or not all(isinstance(key, str) for key in held):
            raise ProviderFault("invalid_yield", "`held` must be a set of text")
        if not all(isinstance(reason, str) and type(count) is int for reason, count in skipped.items()):
            raise ProviderFault("invalid_yield", "`skipped` must count reasons")
        if type(consumed) is not int or not 0 <= consumed <= reader.source.size:
            message = f"`consumed` is {consumed}, but the source has {reader.source.size} bytes"
            raise ProviderFault("invalid_yield", message)
        snapshot, window = reader.source, reader.effective_window()
        return SourceCheckpoint(
            self.context.provider,
            self.context.dataset,
            encode_path(snapshot.path),
            snapshot.inode,
            snapshot.size,
            snapshot.mtime_ns,
            consumed,
            reader.consumed_hash,
            tuple(sorted(held)),
            snapshot.quiet,
            tuple(reader.left_out),
            window.since,
            window.until,
            row_filter.list_ignored(snapshot.ignored),
            machine=self.context.machine,
        )


@dataclass(frozen=True)
class SourceTask:
    """Reads some sources in a Spark worker, and writes their rows to files."""

    settings: BuildSettings
    sources: tuple[SourcePiece, ...]

    @property
    def bytes(self) -> int:
        return sum(source.snapshot.size for source in self.sources)

    @property
    def files(self) -> int:
        return len(self.sources)

    @property
    def inputs(self) -> tuple[SourcePiece, ...]:
        return self.sources

    def with_copies(self, copies: Sequence[Path | Exception]) -> SourceTask:
        placed = zip(self.sources, copies, strict=True)
        return replace(self, sources=tuple(replace(each, copy=copy) for each, copy in placed))

    def run(self, writer: RowWriter | None = None) -> BuildResult:
        """A dry run passes a writer that only counts."""
        # Not at the top: the daemon reads sources without PyArrow.
        from hypaware.lake.build import BuildResult, build_rows

        dataset, built = datasets.get(self.settings.dataset), BuildResult()
        rows = chain.from_iterable(source.rows(dataset, built) for source in self.sources)
        return build_rows(self.settings, self.sources[0].first_seq, rows, built, writer)


@cache
def load_registries() -> tuple[ProviderRegistry, MaterializerRegistry]:
    """Load the plugins. `engine.worker_daemon` calls it before Spark's workers are forked, so that they share them."""
    return providers.load_providers(), providers.load_materializers()


def _encode_rejected(raw: Row) -> bytes:
    """Return a rejected row as bytes, even if it is not JSON."""
    try:
        return orjson.dumps(raw, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(raw).encode("utf-8", "backslashreplace")
