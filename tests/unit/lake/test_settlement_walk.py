"""Random histories of a home that records live and imports, checked by an oracle without keys, indexes or files.

Parts of two sessions repeat each other's text. They arrive live, as history and from transcripts, in any order and more
than once; another gateway sends the same parts; flushes and compactions are killed, index and state are lost, a session
is purged. The oracle counts: each text has at least as many rows as one recorder has reported, and never more than
there are parts. A sequence keeps its content forever and is delivered once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypaware.config import Config, SinkConfig
from hypaware.home import Home
from hypaware.lake import metadata, settlement_files
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import GATEWAY, SEQ
from hypaware.spool.writer import Spool
from hypaware.testing.destination import FOLDER, FolderDestination
from tests.light_lake import read_lake
from tests.light_life import DATASET, NO_TIMER, flush
from tests.light_purge import deliver, purge
from tests.live_rows import Part
from tests.lives import live
from tests.rows import MESSAGES
from tests.unit.maintain.compacting import SmallFiles

FIRST, SECOND = "session-1", "session-2"
PARTS = [
    Part(0),
    Part(1, "answer", "done"),
    Part(2, words="continue"),
    Part(3, "call"),
    Part(4, words="continue"),
    Part(5, "answer", "done"),
    Part(6, words="continue"),
    Part(7, words="continue", session=SECOND),
    Part(8, "answer", "done", session=SECOND),
    Part(9, words="continue", session=SECOND),
]
FLUSH_POINTS = (
    "lake.thin.after-write",
    "lake.commit.after-commit",
    "lake.record.after-commit",
    "lake.keys.after-commit",
)
COMPACT_POINTS = ("maintain.compact.after-commit", "lake.settlements.before-remove", "lake.settlements.after-remove")
STRANGER = "another-gateway"

Said = tuple[str, str, str | None, str | None]
"""Return the content of a part without its id."""


def said(row: dict[str, Any]) -> Said:
    return row["session_id"], row["role"], row.get("tool_call_id"), row["content_text"]


class Life:
    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.there = FolderDestination(folder / "there")
        sink = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(self.there.folder)})
        self.config = Config(sinks={"there": sink})
        self.told: defaultdict[str, set[int]] = defaultdict(set)
        """The parts that each recorder has reported."""
        self.purged: set[str] = set()
        self.says: dict[int, Said] = {}
        self.ever = 0
        self.sent: list[tuple[str, list[dict[str, Any]], bool]] = []

    def append(self, who: str, some: Iterable[Part], deferrable: bool) -> None:
        parts = list(some)
        rows = [part.native() if who == "native" else part.live(late=who == "late") for part in parts]
        self._spool(rows, deferrable)
        self.sent.append((who, rows, deferrable))
        self.told["native" if who == "native" else "live"] |= {part.number for part in parts}

    def again(self) -> None:
        for _, rows, deferrable in self.sent[-2:]:
            self._spool(rows, deferrable)

    def stranger(self, some: Iterable[Part]) -> None:
        """Append rows of another gateway, which never match rows of this home."""
        rows = [coerce_row(MESSAGES, part.native(), STRANGER) for part in some]
        with Spool(self.home, NO_TIMER) as spool:
            spool.append_coerced(DATASET, rows)
        self.told[STRANGER] |= {part.number for part in some}

    def _spool(self, rows: list[dict[str, Any]], deferrable: bool) -> None:
        with Spool(self.home, NO_TIMER) as spool:
            spool.append(DATASET, rows, deferrable=deferrable)

    def flush(self, patient: bool = False, crash_at: str | None = None) -> None:
        if crash_at:
            live(lambda: (flush(self.home, skip_deferred=patient), None)[1], crash_at=crash_at)
        else:
            flush(self.home, skip_deferred=patient)
        self.look()

    def compact(self, force: bool, crash_at: str | None = None) -> None:
        if not metadata.entry(self.home, DATASET):
            return

        def work() -> None:
            assert SmallFiles(self.home).compact(force=force).errors == []

        if crash_at:
            live(work, crash_at=crash_at)
        else:
            work()
        self.look()

    def lose_index(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.home.keys.with_name(self.home.keys.name + suffix).unlink(missing_ok=True)

    def lose_state(self) -> None:
        for path in self.home.root.glob("state.db*"):
            path.unlink()

    def purge(self, session: str) -> None:
        if metadata.entry(self.home, DATASET):
            assert purge(self.home, "session", session, config=self.config)["remaining"] == []
            self.purged.add(session)
            self.says = {seq: what for seq, what in self.says.items() if what[0] != session}
            self.look()

    def deliver(self) -> None:
        if metadata.entry(self.home, DATASET):
            deliver(self.home, self.config)

    def look(self) -> list[dict[str, Any]]:
        """Check what holds at any time."""
        rows = read_lake(self.home, DATASET)
        now = {row[SEQ]: said(row) for row in rows}
        assert len(now) == len(rows), "a sequence exists twice"
        assert self.says.items() <= now.items(), "a row is missing or has changed"
        fresh = now.keys() - self.says.keys()
        assert all(seq > self.ever for seq in fresh), "a new row has a reused sequence"
        self.ever = max([self.ever, *fresh])
        self.says = now
        ids = Counter((row[GATEWAY], row["part_id"]) for row in rows)
        assert set(ids.values()) <= {1}, "a part exists twice"
        assert not self.purged.intersection(row["session_id"] for row in rows), "a purged session has returned"
        return rows

    def count(self) -> None:
        """Check what holds when the spool is empty."""
        rows = self.look()
        theirs = {row["part_id"] for row in rows if row[GATEWAY] == STRANGER}
        open_parts = [part for part in PARTS if part.session not in self.purged]
        assert theirs == {f"{part.native_id}#0" for part in open_parts if part.number in self.told[STRANGER]}
        own = Counter(said(row) for row in rows if row[GATEWAY] != STRANGER)
        by_words: defaultdict[Said, list[int]] = defaultdict(list)
        for part in open_parts:
            by_words[said(part.native())].append(part.number)
        for what, numbers in by_words.items():
            native, recorded = self.told["native"].intersection(numbers), self.told["live"].intersection(numbers)
            most = len(native | recorded)
            assert max(len(native), len(recorded)) <= own[what] <= most, (what, numbers, own[what])

    def end(self) -> None:
        """Import all transcripts, apply all settlements and deliver everything."""
        self.flush()
        self.count()
        self.append("native", PARTS, deferrable=False)
        self.flush()
        self.compact(force=True)
        rows = [row for row in self.look() if row[GATEWAY] != STRANGER]
        wanted = {f"{part.native_id}#0" for part in PARTS if part.session not in self.purged}
        assert {row["part_id"] for row in rows} == wanted
        assert settlement_files.files(self.home, DATASET) == []
        self.again()
        self.flush()
        rows = self.look()
        assert {row["part_id"] for row in rows if row[GATEWAY] != STRANGER} == wanted
        self.deliver()
        if not self.purged:
            assert len(self.there.arrived()) == len(rows), "a row was delivered twice or never"


some_parts = st.tuples(st.integers(0, len(PARTS) - 1), st.integers(1, 5)).map(lambda cut: PARTS[cut[0] : sum(cut)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(["live", "late", "native"]), some_parts, st.booleans()),
        st.tuples(st.just("append"), st.sampled_from(["live", "native"]), some_parts, st.just(False)),
        st.tuples(st.just("flush"), st.booleans(), st.none() | st.sampled_from(FLUSH_POINTS)),
        st.tuples(st.just("compact"), st.booleans(), st.none() | st.sampled_from(COMPACT_POINTS)),
        st.tuples(st.sampled_from(["again", "lose_index", "lose_state", "deliver"])),
        st.tuples(st.just("stranger"), some_parts),
        st.tuples(st.just("purge"), st.sampled_from([FIRST, SECOND])),
    ),
    min_size=4,
    max_size=14,
)


def _killed_before_the_index_knows(point: str) -> list[tuple[Any, ...]]:
    """A compaction applies the settlement before the next flush."""
    return [("append", "native", PARTS[5:9], False), ("flush", False, point), ("compact", True, None), ("again",)]


_KILLED_BEFORE_ITS_COMMIT = [
    ("append", "native", PARTS[2:5], False),
    ("flush", False, "lake.thin.after-write"),
    ("compact", False, "maintain.compact.before-commit"),
    ("compact", False, None),
    ("flush", False, None),
]


@pytest.mark.hazard(68)
@pytest.mark.hazard(83)
@pytest.mark.hazard(85)
@settings(max_examples=4)
@given(steps)
@example(_killed_before_the_index_knows("lake.record.after-commit"))
@example(_killed_before_the_index_knows("lake.keys.after-commit"))
@example(_KILLED_BEFORE_ITS_COMMIT)
def test_a_part_is_one_row_and_is_delivered_once(
    tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[Any, ...]]
) -> None:
    life = Life(tmp_path_factory.mktemp("walk"))
    life.append("live", PARTS[2:5], deferrable=False)
    life.flush()
    for what, *how in taken:
        getattr(life, what)(*how)
    life.end()
