"""Imports, backups and projections of a lake that machines share, with PyIceberg in place of Spark.

PostgreSQL and the S3 server are real. Two homes stand for two machines. `test_team_import` imports with real processes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.backfill.report import ImportReport
from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home
from hypaware.home.identity import is_own_gateway
from hypaware.iceberg import catalog
from hypaware.maintain.backup import backup_machine, restore_home
from hypaware.reproject import ReprojectionReport, append_missing
from hypaware.state.home_opener import open_home, read_identity
from tests.support.claude_files import grow, turns, write
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.raw_exchanges import EXCHANGES, project_all, recorded
from tests.support.raw_exchanges import store as store_rows
from tests.support.rows import rows
from tests.support.shared_lake import SharedLakeServers


@pytest.fixture
def machines(servers: SharedLakeServers) -> Iterator[tuple[Home, Home]]:
    """Return two homes with one new lake."""
    first, second = (Home(servers.machine(name).home) for name in ("first", "second"))
    yield first, second
    catalog._idle.connection = None


def run_import(home: Home, folder: Path) -> ImportReport:
    return import_history(home, {"CLAUDE_CONFIG_DIR": str(folder), "HYP_HOME": str(home.root), "HOME": str(folder)})


def transcript(folder: Path, session: str) -> Path:
    return folder / "projects" / "-project" / f"{session}.jsonl"


def test_overlapping_histories_of_two_machines_are_stored_once_and_stay_distinguishable(
    machines: tuple[Home, Home], tmp_path: Path
) -> None:
    first, second = machines
    one, two = tmp_path / "one", tmp_path / "two"
    write(transcript(one, "both"), turns("both", 3))
    write(transcript(one, "one"), turns("one", 4))
    write(transcript(two, "both"), turns("both", 5))
    assert run_import(first, one).rows.written == 21
    assert run_import(second, two).rows.written == 6
    found = read_lake(first, DATASET)
    assert len({row["part_id"] for row in found}) == len(found) == 27
    own = read_identity(first).gateway_id
    by_machine = Counter(row["gateway_id"] for row in found)
    assert by_machine == {
        read_identity(first).gateway_of_rows(first.root): 21,
        read_identity(second).gateway_of_rows(second.root): 6,
    }
    assert all(is_own_gateway(each, own) for each in by_machine)
    for home, folder, files in ((first, one, 2), (second, two, 1)):
        again = run_import(home, folder)
        assert (again.rows.written, again.files_unchanged) == (0, files)
    grow(transcript(two, "both"), turns("both", 1, first=5))
    assert run_import(second, two).rows.written == 3


def test_the_same_path_on_two_machines_is_two_sources(machines: tuple[Home, Home], tmp_path: Path) -> None:
    first, second = machines
    path = transcript(tmp_path / "claude", "s")
    write(path, turns("first", 3))
    assert run_import(first, tmp_path / "claude").rows.written == 9
    path.unlink()
    write(path, turns("second", 2))
    assert run_import(second, tmp_path / "claude").rows.written == 6
    path.unlink()
    write(path, turns("first", 4))
    assert run_import(first, tmp_path / "claude").rows.written == 3
    assert len(read_lake(second, DATASET)) == 18


def test_rows_that_two_machines_send_are_stored_once(machines: tuple[Home, Home]) -> None:
    first, second = machines
    append(first, rows(10))
    append(second, rows(10, start=5))
    assert flush(first).rows.written == 10
    report = flush(second)
    assert (report.rows.written, report.rows.duplicate) == (5, 5)
    assert len({row["gateway_id"] for row in read_lake(first, DATASET)}) == 2


def test_a_backup_has_what_only_this_machine_has_and_stores_nothing_twice(
    machines: tuple[Home, Home], tmp_path: Path
) -> None:
    first, _ = machines
    append(first, rows(5))
    flush(first)
    append(first, rows(3, start=5))
    report = backup_machine(first, tmp_path / "backup", lambda *_, **__: None)
    shared = find_shared_lake(first)
    assert shared is not None
    assert report["not_copied"] == [shared.address, shared.warehouse]
    assert not list((tmp_path / "backup").rglob("*.parquet"))
    shutil.rmtree(first.root)
    restore_home(first, tmp_path / "backup", lambda *_, **__: None)
    assert flush(first).rows.written == 3
    another = Home(tmp_path / "another")
    restore_home(another, tmp_path / "backup", lambda *_, **__: None)
    assert flush(another).rows.total == 0
    append(another, rows(9))
    assert flush(another).rows.written == 1
    assert sorted(row["message_id"] for row in read_lake(another, DATASET)) == [f"message-{n}" for n in range(9)]


def test_each_machine_projects_its_own_raw_exchanges_again(machines: tuple[Home, Home]) -> None:
    """The rules for private folders are those of the machine that recorded them."""
    made = {}
    for home, scenario in zip(machines, ("claude-2.1.325/tools", "codex-0.166.0/tools"), strict=True):
        raw, projected = project_all(recorded(scenario))
        store_rows(home, EXCHANGES, raw)
        made[read_identity(home).gateway_of_rows(home.root)] = len(projected)
    for home in machines:
        opened, report = open_home(home), ReprojectionReport(dry_run=False)
        with closing(opened.store):
            added = append_missing(opened, Config(), TimeWindow(), report, lambda *_: None)
        assert added == made[opened.gateway_of_rows]
        flush(home)
        again = open_home(home)
        with closing(again.store):
            assert append_missing(again, Config(), TimeWindow(), report, lambda *_: None) == 0
    assert Counter(row["gateway_id"] for row in read_lake(machines[0], DATASET)) == made
