"""Compare a round on a large lake with one on a small lake, and measure the memory of a first full delivery."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.delivery_homes import DATASET, Sender, check
from bench.history import temporary_home
from bench.measure import Measured, watched_memory
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import parquet
from hypaware.lake.read import PAGE_ROWS, LakeRowReader
from hypaware.state import flushes
from hypaware.state.home_opener import open_home

_ROUNDS = 5
_SMALL_LAKE = 100_000
_NEW_ROWS = 1_000
_ARCHIVE = "archive"
_SOURCES = ("claude", "codex")


@dataclass
class Lake:
    """A home whose lake is fully delivered and to which rows are added."""

    sender: Sender
    rows: int
    rounds: list[float] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)

    def make(self) -> None:
        destination = str(self.sender.home.root / "out")
        self.sender.declare(_ARCHIVE, kind="blob", destination=destination, encoder="parquet")
        self.sender.commands.run([sys.executable, "-m", "bench.large_lake", str(self.sender.home.root), str(self.rows)])

    def deliver_all(self) -> tuple[float, list[int]]:
        """Return the seconds and the engine's peak memory in each half of the delivery."""
        pages = self.rows // len(_SOURCES) // PAGE_ROWS
        spent, delivered, peaks = 0.0, 0, []
        for budget in (pages // 2, None):
            with watched_memory(self.sender.commands, every=0.1) as memory:
                took, rows = self.sender.round(_ARCHIVE, budget)
            spent, delivered = spent + took, delivered + rows
            peaks.append(memory.bytes)
        check(delivered, self.rows)
        return spent, peaks

    def deliver_new_rows(self) -> None:
        before = _high_waters(self.sender.home)
        self.sender.add(_NEW_ROWS)
        spent, rows = self.sender.round(_ARCHIVE)
        check(rows, _NEW_ROWS)
        self.rounds.append(spent)
        self.scans.append(_scan(self.sender.home, before, _high_waters(self.sender.home)))

    def scan_inside_files(self) -> None:
        """Scan the last rows of each source, as if a watermark were inside the file."""
        after = _high_waters(self.sender.home)
        self.scans.append(_scan(self.sender.home, {source: last - _NEW_ROWS for source, last in after.items()}, after))


@dataclass(frozen=True)
class Scan:
    found: int
    scanned: int
    cut: int
    """Rows in the row groups that an end of the range cuts."""

    @property
    def is_bounded(self) -> bool:
        return self.scanned <= 2 * self.found + self.cut


def growing(folder: Path, rows: int) -> Iterator[Measured]:
    with temporary_home(folder, "small") as small, temporary_home(folder, "large") as large:
        lakes = [Lake(Sender(small), _SMALL_LAKE), Lake(Sender(large), rows)]
        for lake in lakes:
            lake.make()
            spent, peaks = lake.deliver_all()
        first, last = peaks[0], peaks[-1]
        yield Measured(
            f"first export of {rows:,} small rows to a folder, Parquet",
            "–",
            f"{rows / spent:,.0f} rows/s, {spent:.0f} s",
        )
        yield Measured(
            "peak memory of the engine (PSS): second half of the rows against the first",
            "flat",
            f"{last / first:.2f} × ({last / 1e6:.0f} MB, {first / 1e6:.0f} MB)",
            last <= 1.15 * first,
        )
        for lake in lakes:
            lake.scan_inside_files()
            lake.deliver_new_rows()
            lake.rounds.clear()
        for _ in range(_ROUNDS):
            for lake in lakes:
                lake.deliver_new_rows()
        times = [statistics.median(lake.rounds) for lake in lakes]
        yield Measured(
            f"round with {_NEW_ROWS:,} new rows in {rows:,}, warm, against {_SMALL_LAKE:,}",
            "≤ 1.3 ×",
            f"{times[1] / times[0]:.2f} × ({1000 * times[1]:.0f} ms, {1000 * times[0]:.0f} ms)",
            times[1] <= 1.3 * times[0],
        )
        scan, inside = lakes[1].scans[-1], lakes[1].scans[0]
        yield Measured(
            f"rows scanned for them · for {inside.found:,} whose first lies inside a file of each source",
            "≤ 2 × and a row group of each file that is cut",
            f"{scan.scanned:,} · {inside.scanned:,}, {inside.cut:,} rows in such row groups",
            all(each.is_bounded for lake in lakes for each in lake.scans),
        )


def _high_waters(home: Home) -> dict[str, int]:
    store = open_home(home).store
    try:
        with store.reading() as connection:
            return flushes.load_high_water(connection, DATASET)[DATASET]
    finally:
        store.close()


def _scan(home: Home, after: dict[str, int], through: dict[str, int]) -> Scan:
    """Read the same files and row groups that a delivery of these ranges reads, and count."""
    rows, found, scanned = LakeRowReader(home), 0, 0
    for source, last in through.items():
        at = after[source]
        while at < last:
            page = rows.page(DATASET, source, at, last, PAGE_ROWS)
            at, found, scanned = page.reached, found + len(page.rows), scanned + page.scanned
    entry = metadata.find_table(home, DATASET)
    assert entry
    cut = sum(
        group.sequenced
        for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))
        for group in parquet.read_row_groups(file.path)
        if group.min_seq is not None
        and group.max_seq is not None
        and any(group.min_seq <= end < group.max_seq for end in (after[file.source], through[file.source]))
    )
    return Scan(found, scanned, cut)
