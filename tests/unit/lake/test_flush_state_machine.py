"""A state machine test of spool and flush against a model: every acknowledged row is committed, and none twice.

Each step runs in a separate process, which may be killed. A power cut loses all or some of the bytes and directory
entries that were not fsynced.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hypaware.config import FlushConfig
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.light_home import DATASET, NO_TIMER, flush
from tests.support.light_lake import read_lake
from tests.support.rows import rows as message_rows
from tests.support.shadow_disk import ShadowDisk

POINTS = [point.name for point in list_crash_points() if point.package in ("spool", "lake", "iceberg", "state")]
CRASHES = st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 4)).map(
    lambda chosen: f"{chosen[0]}:{chosen[1]}"
)


class SpoolAndFlush(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hyp-machine-"))
        self.home = Home(self.folder / "home")
        self.disk = ShadowDisk(self.folder / "shadow")
        self.sent = 0
        self.acknowledged: set[str] = set()
        self.attempted: set[str] = set()
        self.seen: dict[int, str] = {}
        with self.disk.watching():
            open_home(self.home).store.close()
        self.disk.trust(self.home.root)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.settle()
            shutil.rmtree(self.folder)

    @rule(new=st.integers(0, 12), again=st.integers(0, 5), batches=st.integers(1, 3), seal=st.booleans(), crash=CRASHES)
    def produce(self, new: int, again: int, batches: int, seal: bool, crash: str | None) -> None:
        """Append new and repeated rows in a process that exits normally, exits without sealing, or is killed."""
        plan = []
        for _ in range(batches):
            plan.append(message_rows(new, start=self.sent) + message_rows(min(again, self.sent)))
            self.sent += new
        log = self.folder / "acknowledged"
        log.write_text("")

        def work() -> None:
            spool = Spool(self.home, NO_TIMER)
            for batch in plan:
                spool.append(DATASET, batch)
                with open(log, "a") as file:
                    file.writelines(f"{row['message_id']}#0\n" for row in batch)
            if seal:
                spool.close()

        with self.disk.watching():
            run_in_child(work, crash_at=crash)
        self.acknowledged |= set(log.read_text().splitlines())
        self.attempted |= {f"{row['message_id']}#0" for batch in plan for row in batch}

    @rule(rows=st.integers(3, 40), crash=CRASHES)
    def flush(self, rows: int, crash: str | None) -> None:
        with self.disk.watching():
            run_in_child(lambda: self._flush(rows), crash_at=crash)

    @rule(seed=st.integers(0, 2**32), worst=st.booleans())
    def cut_the_power(self, seed: int, worst: bool) -> None:
        coin = random.Random(seed)
        self.disk.power_cut(self.home.root, lambda: not worst and coin.random() < 0.5)

    @rule()
    def lose_the_key_index(self) -> None:
        self._remove("lake/keys.db")

    @rule(mirror_too=st.booleans())
    def lose_the_state(self, mirror_too: bool) -> None:
        self._remove("state.db")
        if mirror_too:
            self.home.mirror.unlink(missing_ok=True)

    @rule()
    def settle(self) -> None:
        """An undisturbed flush: the lake has all acknowledged rows, and no rows that were never appended."""
        with self.disk.watching():
            assert run_in_child(lambda: self._flush(100_000))
        rows = read_lake(self.home, DATASET)
        parts = Counter(row["part_id"] for row in rows)
        assert self.acknowledged <= parts.keys() <= self.attempted
        assert max(parts.values(), default=1) == 1
        by_seq = {row[SEQ]: row["part_id"] for row in rows}
        assert len(by_seq) == len(rows)
        newest = max(self.seen, default=0)
        for seq, part in by_seq.items():
            assert self.seen.get(seq) == part if seq in self.seen else seq > newest, "a sequence was reused"
        assert self.seen.keys() <= by_seq.keys()
        self.seen = by_seq

    @invariant()
    def nothing_is_refused(self) -> None:
        if hasattr(self, "home"):
            assert list((self.home.spool / DATASET / "rejected").glob("*.jsonl")) == []

    def _flush(self, rows: int) -> None:
        flush(self.home, FlushConfig(max_rows=rows))

    def _remove(self, name: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            (self.home.root / f"{name}{suffix}").unlink(missing_ok=True)


TestSpoolAndFlush = pytest.mark.hazard(72)(pytest.mark.hazard(50)(SpoolAndFlush.TestCase))
TestSpoolAndFlush.settings = settings(
    max_examples=30 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 15,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
