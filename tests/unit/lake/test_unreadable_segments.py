"""A segment that cannot be read costs a warning: the other rows are committed, imported and counted, and it stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hypaware.backfill.dry_run import run_dry
from hypaware.config import Config
from hypaware.home import Home
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.spool import segments
from hypaware.spool.segments import SegmentUnreadable
from tests.support.claude_files import turns, write
from tests.support.light_home import append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.light_purge import purge
from tests.support.rows import DATASET, row, rows
from tests.support.status_home import StatusHome
from tests.support.unprivileged import unprivileged


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def sealed(home: Home) -> list[Path]:
    return sorted(segments.spool_folder(home, DATASET).sealed.iterdir())


def parts(home: Home) -> list[str]:
    return sorted(str(each["message_id"]) for each in read_lake(home, DATASET))


def message_ids(*numbers: int) -> list[str]:
    return sorted(str(row(number)["message_id"]) for number in numbers)


@pytest.mark.parametrize("failures", [1, 4], ids=["once", "often"])
def test_the_other_segments_are_committed_and_the_unreadable_one_later_exactly_once(home: Home, failures: int) -> None:
    append(home, rows(2))
    append(home, rows(3, start=10))
    first, _ = sealed(home)
    first.chmod(0)
    with unprivileged():
        for _ in range(failures):
            with pytest.raises(SegmentUnreadable, match=f"{first.name}: Permission denied; its rows stay") as refused:
                flush(home)
    assert refused.value.repair == (f"ls -l {first}",)
    assert parts(home) == message_ids(10, 11, 12)
    assert sealed(home) == [first]
    first.chmod(0o600)
    assert flush(home).rows.written == 2
    assert parts(home) == message_ids(0, 1, 10, 11, 12)
    assert sealed(home) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that fails when it is read")
def test_a_device_that_fails_while_it_is_read_is_the_same(home: Home) -> None:
    append(home, rows(2))
    append(home, rows(3, start=10))
    first, _ = sealed(home)
    # The first page of a process's memory is never mapped: reading it is a real I/O error.
    first.unlink()
    first.symlink_to("/proc/self/mem")
    with pytest.raises(SegmentUnreadable, match="Input/output error"):
        flush(home)
    assert parts(home) == message_ids(10, 11, 12)


def test_an_orphan_that_cannot_be_sealed_holds_up_nothing_else(home: Home) -> None:
    folder = segments.spool_folder(home, DATASET)
    append(home, rows(3, start=10))
    orphan = folder.active / "1-a.jsonl"
    orphan.write_bytes(segments.encode_lines(rows(2), 0))
    orphan.chmod(0)
    with unprivileged(), pytest.raises(SegmentUnreadable, match="1-a"):
        flush(home)
    assert parts(home) == message_ids(10, 11, 12)
    orphan.chmod(0o600)
    flush(home)
    assert parts(home) == message_ids(0, 1, 10, 11, 12)


def test_damaged_bytes_become_rejects_and_hold_up_nothing(home: Home) -> None:
    append(home, rows(3))
    (path,) = sealed(home)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\x00\xfe" + lines[1][3:] + lines[2])
    done = flush(home)
    assert (done.rows.written, done.rows.rejected) == (2, 1)
    assert parts(home) == message_ids(0, 2)


def test_a_dry_run_of_an_import_warns_and_counts(home: Home, tmp_path: Path) -> None:
    write(tmp_path / "claude/projects/-p/one.jsonl", turns("one", 2))
    environment = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    args = {"providers": ["claude"], "environment": environment}
    (expected,) = run_dry(home, Config(), args, lambda *_: None)["providers"]
    append(home, rows(2))
    (path,) = sealed(home)
    path.chmod(0)
    with unprivileged():
        (found,) = run_dry(home, Config(), args, lambda *_: None)["providers"]
    assert (found["status"], found["rows_written"]) == ("ok", expected["rows_written"])
    (warning,) = found["warnings"]
    assert f"{path}: Permission denied" in warning
    path.chmod(0o600)
    assert import_history(home, environment).rows.written == expected["rows_written"]


def test_a_purge_refuses_to_overlook_a_segment_and_its_dry_run_warns(home: Home) -> None:
    append(home, rows(2))
    append(home, rows(3, start=10))
    path = sealed(home)[0]
    path.chmod(0)
    selector = PurgeSelector("session", (str(row(0)["session_id"]),))
    with unprivileged():
        planned = plan_purge(home, selector, lambda *_: None)
        with pytest.raises(PermissionError):
            purge(home, "session", *selector.values)
    assert planned["spool"] == {"rows": 3, "held": [], "unreadable": [f"{path}: Permission denied"]}
    path.chmod(0o600)
    assert purge(home, "session", *selector.values)["spool"]["rows"] == 5


@pytest.mark.parametrize("is_active", [False, True], ids=["sealed", "active"])
def test_status_counts_the_rest_and_names_the_file(home: Home, is_active: bool) -> None:
    at = StatusHome(home).with_engine()
    append(home, rows(2))
    (path,) = sealed(home)
    if is_active:
        path = path.rename(segments.spool_folder(home, DATASET).active / "1-a.jsonl")
    append(home, rows(3, start=10))
    path.chmod(0)
    with unprivileged():
        found = at.diagnostic("segment_unreadable")
        pending = at.snapshot().spool
    assert (found.severity, found.repair) == ("warning", (f"ls -l {path}",))
    assert "its rows stay in the spool" in found.message
    assert (pending["segments"], pending["rows"]) == (2, 3 if is_active else 5)
