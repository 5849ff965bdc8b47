"""Build the rows of spooled segments: the tasks of a flush.

@ref flush#build
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypaware.lake.build import BuildResult, BuildSettings, Reject, SliceUnreadable, build_rows
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, RowRejected
from hypaware.spool import segments

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

    def rows(self, dataset: Dataset, built: BuildResult) -> Iterator[tuple[int, Row]]:
        for ordinal, line in self.lines():
            try:
                row = segments.decode_line(dataset, line, ordinal)
            except RowRejected as reason:
                built.rejects.append(Reject(self.segment, ordinal, str(reason), line))
                continue
            yield self.base + ordinal, row

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with open(self.path, "rb") as file:
                yield from itertools.islice(enumerate(file), self.start, self.stop)
        except OSError as error:
            raise SliceUnreadable(self.segment, error) from error


@dataclass(frozen=True)
class SegmentTask:
    settings: BuildSettings
    slices: tuple[SegmentSlice, ...]
    facts: SessionFactsById = field(default_factory=dict)
    """Facts about sessions that became known after their rows were recorded."""

    def run(self) -> BuildResult:
        built = BuildResult()
        first_seq = self.slices[0].base + self.slices[0].start
        return build_rows(self.settings, first_seq, self._rows(built), built)

    def _rows(self, built: BuildResult) -> Iterator[tuple[int, Row]]:
        dataset = datasets.get(self.settings.dataset)
        for each in self.slices:
            for seq, row in each.rows(dataset, built):
                if self.facts:
                    fill_session_facts(dataset, row, self.facts)
                yield seq, row


def fill_session_facts(dataset: Dataset, row: Row, facts: SessionFactsById) -> None:
    """Fill the empty columns of a live row. A native row already has all facts that its client knew."""
    known = facts.get(row.get("session_id", ""))
    if known and not row.get("cwd") and dataset.match_rules is not None and dataset.match_rules.may_be_live(row):
        for name, value in known.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value
