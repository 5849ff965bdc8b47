"""A state machine test of the index: whatever happens to the lake and the spool, and wherever a refresh is killed, the
index then holds what an oracle computes from the rows."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.index.scrub import scrub_index
from hypaware.index.store import Index, open_index
from hypaware.model.datasets import SEQ
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.edited_lake import (
    DATASET,
    StoredRow,
    add_file,
    current_metadata,
    rewrite,
    roll_back,
    stored_row,
)
from tests.support.index_oracle import assert_index_agrees, committed_rows
from tests.support.light_home import NO_TIMER, flush

WORDS = ("alpha", "beta", "gamma")
POINTS = [point.name for point in list_crash_points() if point.name.startswith(("index.write", "index.create"))]
CRASHES = st.tuples(st.sampled_from(POINTS), st.integers(1, 3)).map(lambda chosen: f"{chosen[0]}:{chosen[1]}")
DAYS = ("2026-10-31T23:59:59Z", "2026-11-01T00:00:01Z", "2026-11-15T08:00:00Z", "1969-12-31T23:50:00Z")
PARTS: tuple[dict[str, Any], ...] = (
    {"role": "user", "part_type": "text"},
    {"role": "assistant", "part_type": "text"},
    {"role": "assistant", "part_type": "tool_call", "tool_name": "Bash", "tool_call_id": "call-1"},
    {"role": "tool", "part_type": "tool_result", "tool_name": "Bash", "tool_result_for": "call-1", "is_error": True},
    {"role": "user", "part_type": "text", "is_sidechain": True, "agent_id": "agent-1"},
    {"role": "system", "part_type": "text", "provider_type": "gateway", "provider_subtype": "context"},
)


@st.composite
def message_rows(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(0, 40))
    text = " ".join(draw(st.lists(st.sampled_from([*WORDS, "Zürich", "日本"]), max_size=4)))
    part = draw(st.sampled_from(PARTS))
    row: dict[str, Any] = {
        **part,
        "session_id": f"session-{number % 3}",
        "provider": "anthropic",
        "client_name": "claude",
        "conversation_started_at": DAYS[0],
        "message_id": f"message-{number}",
        "message_index": number,
        "part_index": draw(st.integers(0, 1)),
        # A message has one time, and thus one day.
        "message_created_at": DAYS[number % len(DAYS)],
        "content_text": text,
        "model": ("model-1", None)[number % 2],
        "cwd": (None, "/srv/a", "/srv/b")[number % 3],
    }
    if part["part_type"] == "tool_call":
        row["tool_args"] = {"command": text}
    if part["role"] == "assistant":
        row["attributes"] = {"usage": {"input_tokens": number, "output_tokens": 2 * number}}
        row["previous_message_id"] = [f"message-{number - 1}"]
    return row


ROWS = st.lists(message_rows(), min_size=1, max_size=6, unique_by=lambda row: (row["message_id"], row["part_index"]))


class IndexFollowsLake(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hyp-index-"))
        self.home = Home(self.folder / "home")
        open_home(self.home).store.close()
        self.spool = Spool(self.home, NO_TIMER)
        self.next_seq = 1
        self.earlier: str | None = None

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.check()
            self.spool.close()
            shutil.rmtree(self.folder)

    @rule(rows=ROWS)
    def commit_rows(self, rows: list[dict[str, Any]]) -> None:
        known = {row["part_id"] for row in committed_rows(self.home)}
        fresh = [row for row in rows if f"{row['message_id']}#{row['part_index']}" not in known]
        stored = []
        for row in fresh:
            stored.append(stored_row(self.next_seq, row, self.spool.gateway_id))
            self.next_seq += 1
        if stored:
            add_file(self.home, stored)

    @rule()
    def compact(self) -> None:
        self._rewrite(lambda row: row)

    @rule(number=st.integers(0, 4))
    def purge(self, number: int) -> None:
        self._rewrite(lambda row: None if row[SEQ] % 5 == number else row)

    @rule(number=st.integers(0, 4), text=st.sampled_from(WORDS))
    def amend(self, number: int, text: str) -> None:
        """Change columns of rows, which keep their sequence, as a settlement does."""

        def change(row: StoredRow) -> StoredRow:
            if row[SEQ] % 5 != number:
                return row
            message_id = f"settled-{row['message_id']}"
            ids = {"message_id": message_id, "part_id": f"{message_id}#{row['part_index']}"}
            return {**row, **ids, "content_text": f"{text} settled"}

        self._rewrite(change)

    @rule()
    def remember(self) -> None:
        if self._has_table():
            self.earlier = current_metadata(self.home)

    @rule()
    def restore(self) -> None:
        """Go back to an earlier state of the table. Its sequences are then used for other rows."""
        if self.earlier is not None:
            roll_back(self.home, self.earlier)
            self.next_seq = max((row[SEQ] for row in committed_rows(self.home)), default=0) + 1

    @rule(rows=ROWS)
    def record(self, rows: list[dict[str, Any]]) -> None:
        self.spool.append(DATASET, rows)

    @rule()
    def seal(self) -> None:
        self.spool.seal()

    @rule()
    def discard_segment(self) -> None:
        """Remove the oldest sealed segment, as a flush does whose rows were all duplicates."""
        for segment in segments.list_sealed_segments(segments.spool_folder(self.home, DATASET))[:1]:
            segment.path.unlink()

    @rule()
    def blank_segment(self) -> None:
        """Replace the first line of a sealed segment, as a purge does."""
        for segment in segments.list_sealed_segments(segments.spool_folder(self.home, DATASET))[:1]:
            lines = segment.path.read_bytes().splitlines(keepends=True)
            new = segment.path.with_name(f".{segment.path.name}.tmp")
            new.write_bytes(b"".join([b'{"n":0,"v":1,"purged":true}\n', *lines[1:]]))
            new.replace(segment.path)

    @rule(limit=st.integers(1, 5))
    def refresh_in_part(self, limit: int) -> None:
        refresh_index(self.home, limit_rows=limit)

    @rule(crash=CRASHES)
    def kill_refresh(self, crash: str) -> None:
        run_in_child(lambda: refresh_index(self.home), crash_at=crash)

    @rule()
    def scrub(self) -> None:
        scrub_index(self.home)
        self.check()

    @rule()
    def check(self) -> None:
        with open_index(self.home) as index:
            assert_index_agrees(self.home, index, WORDS)
            self.check_again(index)

    def check_again(self, index: Index) -> None:
        """A refresh with nothing new changes nothing."""
        before = index.connection.execute("PRAGMA data_version").fetchone()[0]
        report = refresh_index(self.home)
        assert (report.added, report.changed, report.removed, report.spooled) == (0, 0, 0, 0)
        assert index.connection.execute("PRAGMA data_version").fetchone()[0] == before

    def _has_table(self) -> bool:
        return bool(committed_rows(self.home))

    def _rewrite(self, change: Any) -> None:
        if self._has_table():
            rewrite(self.home, change)


@pytest.mark.hazard(112)
def test_the_index_agrees_with_lake_and_spool_whatever_happens() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        IndexFollowsLake,
        settings=settings(
            max_examples=25, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.hazard(112)
def test_rows_that_a_flush_commits_are_indexed_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    open_home(home).store.close()
    rows = [{**PARTS[0], "session_id": "s", "provider": "p", "conversation_started_at": DAYS[2], "part_index": 0,
             "message_id": f"m{number}", "message_index": number, "message_created_at": DAYS[2],
             "content_text": f"alpha {number}"} for number in range(5)]  # fmt: skip
    spool = Spool(home, NO_TIMER)
    spool.append(DATASET, rows[:3])
    with open_index(home) as index:
        assert_index_agrees(home, index, ["alpha"])
    spool.close()
    flush(home)
    Spool(home, NO_TIMER).append(DATASET, rows)
    with open_index(home) as index:
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 5
        assert_index_agrees(home, index, ["alpha"])
