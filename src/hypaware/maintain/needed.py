"""Which rows of a dataset a sink still has to receive, from config and state. Retention holds those rows.

A sink has received the rows up to its stream's watermark. Nothing counts as received if there is no stream yet, if the
stream belongs to another destination than the config names, or if the destination is unknown. Rows with a dead letter
are needed too: the dead letter holds a copy of them in the state, which may be lost. A sink that the config no longer
has, or that does not deliver the dataset, needs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypaware.config import Config
from hypaware.export.standing import Standing, standings
from hypaware.home import Home
from hypaware.lake.metadata import DataFile
from hypaware.state import dead_letters

if TYPE_CHECKING:
    from hypaware.state.store import Store

Range = tuple[int, int]
"""Sequences (after, last]."""


@dataclass(frozen=True)
class Needs:
    sinks: tuple[str, ...] = ()
    """The sinks that rows are held for."""
    delivered_to: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """For each (sink, source), the sequence up to which everything was delivered; 0 if unknown."""
    dead_letter_ranges: Mapping[tuple[str, str], list[Range]] = field(default_factory=dict)

    def sinks_for(self, file: DataFile) -> tuple[str, ...]:
        """Return the sinks that need, or may need, a row of the file."""
        return tuple(sink for sink in self.sinks if self._needs(sink, file))

    def _needs(self, sink: str, file: DataFile) -> bool:
        lowest, highest = file.min_seq, file.max_seq
        if lowest is None or highest is None or file.sequenced < file.rows:
            return True
        if highest > self.delivered_to.get((sink, file.source), 0):
            return True
        return any(
            after < highest and lowest <= last for after, last in self.dead_letter_ranges.get((sink, file.source), ())
        )


def needs(home: Home, config: Config, store: Store, dataset: str) -> Needs:
    """Read the pending deliveries of the dataset."""
    if not config.retention.wait_for_sinks:
        return Needs()
    sinks = tuple(sorted(name for name, sink in config.sinks.items() if dataset in sink.datasets))
    if not sinks:
        return Needs()
    # Read in this order: rows whose dead letter is recorded in between are above the watermark read before.
    delivered_to = {
        (standing.key.sink, standing.key.source): _delivered_through(standing)
        for standing in standings(home, config, store, sinks)
        if standing.key.dataset == dataset
    }
    dead_letter_ranges: dict[tuple[str, str], list[Range]] = defaultdict(list)
    with store.reading() as connection:
        for letter in dead_letters.all_letters(connection):
            if letter.key.dataset == dataset:
                dead_letter_ranges[letter.key.sink, letter.key.source].append((letter.after, letter.last))
    return Needs(sinks, delivered_to, dead_letter_ranges)


def _delivered_through(standing: Standing) -> int:
    if standing.removed or standing.error or standing.points_elsewhere:
        return 0
    watermark = standing.watermark or 0
    # A delivery in progress starts at the watermark; if it ever starts below, its rows are needed too.
    return min(watermark, standing.pending.after) if standing.pending else watermark
