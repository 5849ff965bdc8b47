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
from hypaware.iceberg import metadata
from hypaware.lake import health
from hypaware.model.datasets import GATEWAY, SEQ, coerce_row
from hypaware.spool.writer import Spool
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.compaction_cases import SmallFiles
from tests.support.light_home import DATASET, NO_TIMER, flush
from tests.support.light_lake import read_lake
from tests.support.light_purge import deliver, purge
from tests.support.live_rows import Part
from tests.support.rows import MESSAGES

FIRST, SECOND = "session-1", "session-2"
PARTS = [
    Part(0),
    Part(1, "answer", "done"),
    Part(2, text="continue"),
    Part(3, "call"),
    Part(4, text="continue"),
    Part(5, "answer", "done"),
    Part(6, text="continue"),
    Part(7, text="continue", session=SECOND),
    Part(8, "answer", "done", session=SECOND),
    Part(9, text="continue", session=SECOND),
]
FLUSH_POINTS = (
    "lake.thin.after-write",
    "lake.commit.after-commit",
    "lake.record.after-commit",
    "lake.keys.after-commit",
)
COMPACT_POINTS = ("maintain.compact.after-commit", "lake.settlements.before-remove", "lake.settlements.after-remove")
OTHER_GATEWAY = "another-gateway"

Content = tuple[str, str, str | None, str | None]
"""The content of a part, without its id."""


def content_of(row: dict[str, Any]) -> Content:
    return row["session_id"], row["role"], row.get("tool_call_id"), row["content_text"]


class HomeHistory:
    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.destination = FolderDestination(folder / "there")
        sink = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(self.destination.folder)})
        self.config = Config(sinks={"there": sink})
        self.recorded: defaultdict[str, set[int]] = defaultdict(set)
        """The parts that each recorder has reported."""
        self.purged: set[str] = set()
        self.contents: dict[int, Content] = {}
        self.highest_seq = 0
        self.sent: list[tuple[str, list[dict[str, Any]], bool]] = []

    def append(self, recorder: str, some: Iterable[Part], deferrable: bool) -> None:
        parts = list(some)
        rows = [part.native() if recorder == "native" else part.live(late=recorder == "late") for part in parts]
        self._spool(rows, deferrable)
        self.sent.append((recorder, rows, deferrable))
        self.recorded["native" if recorder == "native" else "live"] |= {part.number for part in parts}

    def repeat(self) -> None:
        for _, rows, deferrable in self.sent[-2:]:
            self._spool(rows, deferrable)

    def append_foreign(self, some: Iterable[Part]) -> None:
        """Append rows of another gateway, which never match rows of this home."""
        rows = [coerce_row(MESSAGES, part.native(), OTHER_GATEWAY) for part in some]
        with Spool(self.home, NO_TIMER) as spool:
            spool.append_coerced(DATASET, rows)
        self.recorded[OTHER_GATEWAY] |= {part.number for part in some}

    def _spool(self, rows: list[dict[str, Any]], deferrable: bool) -> None:
        with Spool(self.home, NO_TIMER) as spool:
            spool.append(DATASET, rows, deferrable=deferrable)

    def flush(self, skip_deferred: bool = False, crash_at: str | None = None) -> None:
        if crash_at:
            run_in_child(lambda: (flush(self.home, skip_deferred=skip_deferred), None)[1], crash_at=crash_at)
        else:
            flush(self.home, skip_deferred=skip_deferred)
        self.check_lake()

    def compact(self, force: bool, crash_at: str | None = None) -> None:
        if not metadata.find_table(self.home, DATASET):
            return

        def work() -> None:
            assert SmallFiles(self.home).compact(force=force).errors == []

        if crash_at:
            run_in_child(work, crash_at=crash_at)
        else:
            work()
        self.check_lake()

    def lose_index(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.home.keys.with_name(self.home.keys.name + suffix).unlink(missing_ok=True)

    def lose_state(self) -> None:
        for path in self.home.root.glob("state.db*"):
            path.unlink()

    def purge(self, session: str) -> None:
        if metadata.find_table(self.home, DATASET):
            assert purge(self.home, "session", session, config=self.config)["remaining"] == []
            self.purged.add(session)
            self.contents = {seq: what for seq, what in self.contents.items() if what[0] != session}
            self.check_lake()

    def deliver(self) -> None:
        if metadata.find_table(self.home, DATASET):
            deliver(self.home, self.config)

    def check_lake(self) -> list[dict[str, Any]]:
        """Check what holds at any time."""
        rows = read_lake(self.home, DATASET)
        now = {row[SEQ]: content_of(row) for row in rows}
        assert len(now) == len(rows), "a sequence exists twice"
        assert self.contents.items() <= now.items(), "a row is missing or has changed"
        fresh = now.keys() - self.contents.keys()
        assert all(seq > self.highest_seq for seq in fresh), "a new row has a reused sequence"
        self.highest_seq = max([self.highest_seq, *fresh])
        self.contents = now
        ids = Counter((row[GATEWAY], row["part_id"]) for row in rows)
        assert set(ids.values()) <= {1}, "a part exists twice"
        assert not self.purged.intersection(row["session_id"] for row in rows), "a purged session has returned"
        return rows

    def check_counts(self) -> None:
        """Check what holds when the spool is empty."""
        rows = self.check_lake()
        theirs = {row["part_id"] for row in rows if row[GATEWAY] == OTHER_GATEWAY}
        open_parts = [part for part in PARTS if part.session not in self.purged]
        assert theirs == {f"{part.native_id}#0" for part in open_parts if part.number in self.recorded[OTHER_GATEWAY]}
        own = Counter(content_of(row) for row in rows if row[GATEWAY] != OTHER_GATEWAY)
        by_content: defaultdict[Content, list[int]] = defaultdict(list)
        for part in open_parts:
            by_content[content_of(part.native())].append(part.number)
        for what, numbers in by_content.items():
            native, live = self.recorded["native"].intersection(numbers), self.recorded["live"].intersection(numbers)
            most = len(native | live)
            assert max(len(native), len(live)) <= own[what] <= most, (what, numbers, own[what])

    def finish(self) -> None:
        """Import all transcripts, apply all settlements and deliver everything."""
        self.flush()
        self.check_counts()
        self.append("native", PARTS, deferrable=False)
        self.flush()
        self.compact(force=True)
        rows = [row for row in self.check_lake() if row[GATEWAY] != OTHER_GATEWAY]
        wanted = {f"{part.native_id}#0" for part in PARTS if part.session not in self.purged}
        assert {row["part_id"] for row in rows} == wanted
        assert health.list_settlements(self.home, DATASET) == []
        self.repeat()
        self.flush()
        rows = self.check_lake()
        assert {row["part_id"] for row in rows if row[GATEWAY] != OTHER_GATEWAY} == wanted
        self.deliver()
        if not self.purged:
            assert len(self.destination.arrived()) == len(rows), "a row was delivered twice or never"


some_parts = st.tuples(st.integers(0, len(PARTS) - 1), st.integers(1, 5)).map(lambda cut: PARTS[cut[0] : sum(cut)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(["live", "late", "native"]), some_parts, st.booleans()),
        st.tuples(st.just("append"), st.sampled_from(["live", "native"]), some_parts, st.just(False)),
        st.tuples(st.just("flush"), st.booleans(), st.none() | st.sampled_from(FLUSH_POINTS)),
        st.tuples(st.just("compact"), st.booleans(), st.none() | st.sampled_from(COMPACT_POINTS)),
        st.tuples(st.sampled_from(["repeat", "lose_index", "lose_state", "deliver"])),
        st.tuples(st.just("append_foreign"), some_parts),
        st.tuples(st.just("purge"), st.sampled_from([FIRST, SECOND])),
    ),
    min_size=4,
    max_size=14,
)


def _killed_before_indexed(point: str) -> list[tuple[Any, ...]]:
    """A compaction applies the settlement before the next flush."""
    return [("append", "native", PARTS[5:9], False), ("flush", False, point), ("compact", True, None), ("repeat",)]


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
@example(_killed_before_indexed("lake.record.after-commit"))
@example(_killed_before_indexed("lake.keys.after-commit"))
@example(_KILLED_BEFORE_ITS_COMMIT)
def test_a_part_is_one_row_and_is_delivered_once(
    tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[Any, ...]]
) -> None:
    history = HomeHistory(tmp_path_factory.mktemp("walk"))
    history.append("live", PARTS[2:5], deferrable=False)
    history.flush()
    for step, *arguments in taken:
        getattr(history, step)(*arguments)
    history.finish()
