"""The import, killed at every crash point, into a light lake; tests/acceptance does the same with Spark."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from hypaware.backfill import batches
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support import claude_files
from tests.support.claude_files import turns, write
from tests.support.light_home import DATASET, append, import_history
from tests.support.light_lake import read_lake
from tests.support.rows import rows as message_rows

# Rejects, poison, power cuts and wrong clocks are tested with the flush: this import has only valid rows.
_NOT_HERE = (
    "iceberg.times",
    "lake.poison",
    "lake.rejects",
    "iceberg.roll-back",
    "lake.reserve",
    "lake.settlements",
    "lake.tombstones",
    "iceberg.relocate",
)
POINTS = [
    point.name
    for point in list_crash_points()
    if point.package in ("state", "lake", "iceberg") and not point.name.startswith(_NOT_HERE)
]
# Points that one import passes several times, with one batch after another; a soak kills at all of them more often.
_AGAIN = ("state.", "iceberg.fsync.", "lake.commit.")
KILLS = [
    (point, times)
    for point in POINTS
    for times in ((1, 2, 3) if point.startswith(_AGAIN) or "HYP_SOAK" in os.environ else (1,))
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Write three sessions; one is a fork that repeats another's lines."""
    projects = tmp_path / "claude" / "projects" / "-project"
    original = list(turns("s", 4))
    write(projects / "s.jsonl", iter(original))
    copied = iter([{**line, "sessionId": "fork"} for line in original])
    write(projects / "fork.jsonl", iter([*copied, *turns("fork", 1, first=4)]), age=claude_files.LONG_AGO - 60)
    write(projects / "t.jsonl", turns("t", 4, start=claude_files.START.replace(day=3)))
    return {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}


def expected_parts() -> set[str]:
    lines = [*turns("s", 4), *turns("fork", 1, first=4), *turns("t", 4)]
    return {f"{line['uuid']}#0" for line in lines}


@pytest.mark.hazard(50)
@pytest.mark.parametrize(("point", "times"), KILLS)
def test_an_import_killed_at_any_point_is_finished_by_the_next_one_without_duplicates(
    home: Home, environment: dict[str, str], point: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", (9000,))
    append(home, spooled := message_rows(5, attributes=None))
    lived = run_in_child(lambda: (import_history(home, environment), None)[1], crash_at=f"{point}:{times}")
    assert not lived or times > 1, "a point that is never reached guards nothing"
    import_history(home, environment)

    rows = read_lake(home, DATASET)
    assert Counter(row["part_id"] for row in rows) == Counter(
        expected_parts() | {f"{row['message_id']}#0" for row in spooled}
    )
    assert len({row[SEQ] for row in rows}) == len(rows)
    usages = [orjson.loads(row["attributes"] or "{}").get("usage") for row in rows]
    assert sum(usage["output_tokens"] for usage in usages if usage) == 90
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == []
        assert flushes.load_high_water(connection)[DATASET]["claude"] == max(row[SEQ] for row in rows)
    again = import_history(home, environment)
    assert (again.rows.written, again.files_unchanged) == (0, 3)
