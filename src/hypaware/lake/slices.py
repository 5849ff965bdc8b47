"""Slices of sealed segments as inputs of a build. `envelope.read_line` decides which lines are valid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypaware.lake.build import Built, Reject, Unreadable
from hypaware.model.coerce import RowRejected
from hypaware.model.datasets import Dataset, Row
from hypaware.spool import envelope


@dataclass(frozen=True)
class Slice:
    """Lines [start, stop) of a segment whose first row has the sequence `base`."""

    segment: str
    path: Path
    base: int
    start: int
    stop: int

    @property
    def first_seq(self) -> int:
        return self.base + self.start

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return (self.segment,)

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        for ordinal, line in self.lines():
            try:
                row = envelope.read_line(dataset, line, ordinal)
            except RowRejected as reason:
                built.rejects.append(Reject(self.segment, ordinal, str(reason), line))
                continue
            yield self.base + ordinal, row

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with open(self.path, "rb") as file:
                yield from itertools.islice(enumerate(file), self.start, self.stop)
        except OSError as error:
            raise Unreadable(self.segment, error) from error
