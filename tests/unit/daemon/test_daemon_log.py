"""The daemon's log: UTC lines, mode 0600, bounded size, and errors that never end the daemon."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypaware.daemon import log_file
from hypaware.daemon.log_file import LogFormatter, RotatingLog, log_path, log_to_file
from hypaware.home import Home
from tests.support import small_disk
from tests.support.processes import open_files

log = logging.getLogger("hypaware.daemon")


@pytest.fixture
def home(home: Home) -> Home:
    home.root.mkdir()
    return home


@contextmanager
def written_by(handler: RotatingLog) -> Iterator[logging.Logger]:
    own = logging.Logger("own", logging.INFO)
    handler.setFormatter(LogFormatter())
    own.addHandler(handler)
    yield own
    handler.close()


def texts(path: Path) -> list[str]:
    """Return the lines without time and level."""
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines()]


def test_log_lines_have_utc_time_and_level_and_escape_control_characters(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to_file(home, quiet=False):
        log.info("%s rows committed", 7)
        log.warning("it answered \x1b[2J")
        log.debug("of no interest")
        logging.getLogger("hypaware.gateway").info("heard")
        logging.getLogger("a.library").info("not heard")
        logging.getLogger("a.library").error("heard of a library")
    log.error("nobody listens any more")
    lines = log_path(home).read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in lines] == [
        "INFO 7 rows committed",
        r"WARNING it answered \x1b[2J",
        "INFO heard",
        "ERROR heard of a library",
    ]
    assert capsys.readouterr().err.splitlines() == lines


def test_quiet_daemon_writes_nothing_to_stderr(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_file(home, quiet=True):
        log.info("here")
    assert texts(log_path(home)) == ["here"]
    assert capsys.readouterr().err == ""


def test_log_file_is_created_with_the_first_line(home: Home) -> None:
    with log_to_file(home, quiet=True):
        assert not home.logs.exists()
    assert not home.logs.exists()


def test_log_is_rotated_by_size_and_keeps_a_few_backups(home: Home) -> None:
    path = log_path(home)
    with written_by(RotatingLog(path, limit=1000, older=2)) as own:
        for number in range(100):
            own.info("line %03d, of some length", number)
    found = sorted(home.logs.iterdir())
    assert [each.name for each in found] == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    assert all(each.stat().st_size <= 1000 for each in found)
    assert {each.stat().st_mode & 0o777 for each in found} == {0o600}
    kept = [line for each in (found[2], found[1], found[0]) for line in texts(each)]
    assert kept[-1] == "line 099, of some length"
    assert kept == [f"line {number:03d}, of some length" for number in range(100 - len(kept), 100)]
    assert (log_file.MAX_BYTES, log_file.BACKUPS) == (5 * 1024 * 1024, 5)


def test_removed_log_file_is_created_again(home: Home) -> None:
    path = log_path(home)
    with written_by(RotatingLog(path)) as own:
        own.info("one")
        path.rename(home.logs / "kept")
        own.info("two")
        shutil.rmtree(home.logs)
        own.info("three")
    assert texts(path) == ["three"]
    assert open_files(home.root) == []


def test_log_does_not_recreate_a_removed_home(home: Home) -> None:
    with written_by(RotatingLog(log_path(home))) as own:
        own.info("one")
        shutil.rmtree(home.root)
        own.info("two")
    assert not home.root.exists()


@pytest.mark.hazard(13)
def test_full_disk_loses_log_lines_and_the_log_reports_how_many(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk") as disk:
        home = Home(disk.root / "home")
        home.root.mkdir()
        long = "x" * 3000
        with written_by(RotatingLog(log_path(home))) as own:
            own.info("before")
            disk.fill(leave=4096)
            for _ in range(5):
                own.info(long)
            disk.make_room()
            own.info("after")
        found = texts(log_path(home))
    assert found[0] == "before"
    missing = [line for line in found if line.endswith("log lines are missing here because they could not be written")]
    assert len(missing) == 1
    whole = found.count(long)
    assert missing[0].startswith(f"{5 - whole} log lines")
    assert whole < 5
    assert found[-1] == "after"


def test_lines_go_to_stderr_if_the_log_cannot_be_created(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.logs.write_text("no folder")
    with log_to_file(home, quiet=False):
        log.info("here")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO here")
