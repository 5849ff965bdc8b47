"""Which rows of a dataset a sink still has to get, told from config and state: retention waits with those.

A sink has had what lies at or below its stream's watermark. Nothing counts as had where there is no stream yet, where
the stream belongs to another destination than the config names now, or where nothing can tell which one that is. A
dead letter needs its rows, too: it has a copy of them in the state, and that may be lost. A sink that the config no
longer has, or that does not carry the dataset, needs nothing.
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
    """Those that rows wait for."""
    had: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Of each (sink, source) the sequence up to which it has everything; 0 where that is not known."""
    letters: Mapping[tuple[str, str], list[Range]] = field(default_factory=dict)

    def of(self, file: DataFile) -> tuple[str, ...]:
        """The sinks that still need a row of the file, or may need one."""
        return tuple(sink for sink in self.sinks if self._needs(sink, file))

    def _needs(self, sink: str, file: DataFile) -> bool:
        lowest, highest = file.min_seq, file.max_seq
        if lowest is None or highest is None or file.numbered < file.rows:
            return True
        if highest > self.had.get((sink, file.source), 0):
            return True
        return any(after < highest and lowest <= last for after, last in self.letters.get((sink, file.source), ()))


def needs(home: Home, config: Config, store: Store, dataset: str) -> Needs:
    if not config.retention.wait_for_sinks:
        return Needs()
    waited_for = tuple(sorted(name for name, sink in config.sinks.items() if dataset in sink.datasets))
    if not waited_for:
        return Needs()
    # In this order: a letter that is buried meanwhile has its rows above the watermark that was read before.
    had = {
        (standing.key.sink, standing.key.source): _had(standing)
        for standing in standings(home, config, store, waited_for)
        if standing.key.dataset == dataset
    }
    letters: dict[tuple[str, str], list[Range]] = defaultdict(list)
    with store.reading() as connection:
        for letter in dead_letters.all_letters(connection):
            if letter.key.dataset == dataset:
                letters[letter.key.sink, letter.key.source].append((letter.after, letter.last))
    return Needs(waited_for, had, letters)


def _had(standing: Standing) -> int:
    if standing.removed or standing.trouble or standing.points_elsewhere:
        return 0
    watermark = standing.watermark or 0
    # What is under way begins at the watermark; should it ever begin below, that is needed as well.
    return min(watermark, standing.pending.after) if standing.pending else watermark
