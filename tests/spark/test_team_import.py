"""Imports into a lake that machines share: each row once, told apart by machine. Real servers, real `hyp` processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.claude_files import grow, turns, write
from tests.support.command import Hyp
from tests.support.processes import PATIENCE
from tests.support.rows import DATASET
from tests.support.shared_lake import SharedLakeServers

# Each takes more than a minute, so `make test` kills at one of them.
KILLED_AT = ["lake.commit.after-commit", *(["lake.intake.after-pend"] if "HYP_SOAK" in os.environ else [])]
_COUNT = f"SELECT count(*) AS n, count(DISTINCT part_id) AS ids FROM {DATASET}"


def machine(servers: SharedLakeServers, name: str) -> Hyp:
    """Return a home whose commands run their jobs themselves, and release the lease when they end."""
    return replace(servers.machine(name), inline=True)


@contextmanager
def engine(inline: Hyp) -> Iterator[Hyp]:
    """Yield the machine with an engine, which keeps the lease and Spark for several commands."""
    hyp = replace(inline, inline=False)
    try:
        yield hyp
    finally:
        hyp.run("engine", "stop")


def history(folder: Path, name: str) -> dict[str, str]:
    return {"CLAUDE_CONFIG_DIR": str(folder / f"claude-{name}")}


def transcript(folder: Path, name: str, session: str) -> Path:
    return folder / f"claude-{name}" / "projects" / "-project" / f"{session}.jsonl"


def only(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["providers"]
    return dict(found)


def test_two_machines_import_overlapping_histories_concurrently_and_each_row_is_stored_once(
    servers: SharedLakeServers, tmp_path: Path
) -> None:
    first, second = machine(servers, "first"), machine(servers, "second")
    for name, turns_of_both in (("first", 3), ("second", 5)):
        write(transcript(tmp_path, name, "both"), turns("both", turns_of_both))
        write(transcript(tmp_path, name, name), turns(name, 4))
    running = [hyp.start("backfill", "claude", **history(tmp_path, hyp.home.name)) for hyp in (first, second)]
    for process in running:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    rows = 3 * (5 + 4 + 4)
    with engine(first) as hyp:
        assert hyp.query(_COUNT) == [{"n": rows, "ids": rows}]
        by_machine = hyp.query(f"SELECT gateway_id, count(*) AS n FROM {DATASET} GROUP BY 1 ORDER BY n")
        assert len(by_machine) == 2
        assert by_machine[0]["n"] in (12, 18), "the longer copy of a session is complete, whoever came first"
        used = hyp.ok("usage", "--by", "machine")["rows"]
        assert {each["key"] for each in used} == {each["gateway_id"] for each in by_machine}
        _require_unchanged(hyp, tmp_path)
    with engine(second) as hyp:
        _require_unchanged(hyp, tmp_path)
        grow(transcript(tmp_path, "second", "second"), turns("second", 1, first=4))
        planned = only(hyp.ok("backfill", "claude", "--dry-run", **history(tmp_path, "second")))
        done = only(hyp.ok("backfill", "claude", **history(tmp_path, "second")))
        assert planned["rows_written"] == done["rows_written"] == 3
        assert hyp.ok("verify", "--deep")["ok"] is True


def _require_unchanged(hyp: Hyp, folder: Path) -> None:
    again = only(hyp.ok("backfill", "claude", **history(folder, hyp.home.name)))
    assert (again["rows_written"], again["files_unchanged"]) == (0, 2)


@pytest.mark.parametrize("point", KILLED_AT)
def test_an_import_that_is_killed_is_finished_by_another_machine(
    servers: SharedLakeServers, tmp_path: Path, point: str
) -> None:
    first, second = machine(servers, "first"), machine(servers, "second")
    write(transcript(tmp_path, "first", "one"), turns("one", 3))
    write(transcript(tmp_path, "second", "two"), turns("two", 2))
    assert first.run("backfill", "claude", HYP_CRASH_AT=point, **history(tmp_path, "first")).code != 0
    assert only(second.ok("backfill", "claude", **history(tmp_path, "second")))["rows_written"] == 6
    with engine(first) as hyp:
        again = only(hyp.ok("backfill", "claude", **history(tmp_path, "first")))
        was_committed = point == "lake.commit.after-commit"
        assert (again["rows_written"], again["files_unchanged"]) == ((0, 1) if was_committed else (9, 0))
        assert hyp.query(_COUNT) == [{"n": 15, "ids": 15}]
        assert hyp.ok("verify", "--deep")["ok"] is True
