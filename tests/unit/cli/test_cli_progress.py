"""What long work shows while it runs, where it is measured in bytes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from hypaware.cli.jobs import event_handler
from hypaware.cli.progress import Lines

Capture = pytest.CaptureFixture[str]
MB = 10**6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_tells_files_rows_pace_and_what_is_left(capfd: Capture) -> None:
    clock = Clock()
    lines = Lines(clock)

    lines.report("importing", 0, 500 * MB, unit="bytes", files=0, files_total=1092, rows=0)
    clock.now = 10.0
    lines.report("importing", 400 * MB, 500 * MB, unit="bytes", files=874, files_total=1092, rows=300_829)
    clock.now = 20.0
    lines.report("importing", 500 * MB, 500 * MB, unit="bytes", files=1092, files_total=1092, rows=376_036)

    assert capfd.readouterr().err.splitlines() == [
        "importing 0%, 0/1,092 files, 0 rows",
        "importing 80%, 874/1,092 files, 300,829 rows, 40.0 MB/s, 2 s left",
        "importing 100%, 1,092/1,092 files, 376,036 rows, 25.0 MB/s",
    ]


@pytest.mark.parametrize(("speed", "left"), [(1.0, "8 min left"), (0.1, "1 h 23 min left"), (20.0, "25 s left")])
def test_what_is_left_is_told_in_the_unit_that_fits(capfd: Capture, speed: float, left: str) -> None:
    clock = Clock()
    lines = Lines(clock)
    lines.report("importing", 0, 500 * MB + 10 * speed * MB, unit="bytes")
    clock.now = 10.0
    lines.report("importing", 10 * speed * MB, 500 * MB + 10 * speed * MB, unit="bytes")

    assert capfd.readouterr().err.splitlines()[-1].endswith(left)


def test_the_pace_is_that_of_the_work_at_hand(capfd: Capture) -> None:
    """What an earlier step did in its time says nothing about this one."""
    clock = Clock()
    lines = Lines(clock)
    lines.report("reading", 0, 100 * MB, unit="bytes")
    clock.now = 100.0
    lines.report("writing", 50 * MB, 100 * MB, unit="bytes")
    clock.now = 110.0
    lines.report("writing", 60 * MB, 100 * MB, unit="bytes")

    assert capfd.readouterr().err.splitlines()[1:] == ["writing 50%", "writing 60%, 1.0 MB/s, 40 s left"]


def test_other_work_is_shown_without_a_pace(capfd: Capture) -> None:
    Lines(Clock()).report("committing", 1, 4, unit="rows", files=3)

    assert capfd.readouterr().err == "committing 25%\n"


def test_what_a_job_says_of_its_progress_reaches_the_display(capfd: Capture) -> None:
    handle = event_handler(Lines(Clock()), lambda _chunk: None)

    handle({"event": "progress", "message": "importing", "done": 1, "total": 2, "unit": "bytes", "files": 7, "rows": 9})

    assert capfd.readouterr().err == "importing 50%, 7 files, 9 rows\n"


@pytest.mark.parametrize("columns", ["80", "200"])
def test_on_a_terminal_the_pace_stands_beside_the_bar_on_one_line(columns: str) -> None:
    script = (
        "from hypaware.cli.progress import Bar\n"
        "now = [0.0]\n"
        "bar = Bar(lambda: now[0])\n"
        "bar.report('importing claude', 0, 5e8, unit='bytes', files=0, files_total=1092, rows=0)\n"
        "now[0] = 10.0\n"
        "bar.report('importing claude', 4e8, 5e8, unit='bytes', files=874, files_total=1092, rows=300829)\n"
        "bar.clear()\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": columns}
    subprocess.run([sys.executable, "-c", script], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    drawn = b""
    with suppress(OSError):
        while chunk := os.read(ours, 65536):
            drawn += chunk
    os.close(ours)

    last = drawn.decode().rpartition("importing claude")[2].partition("\n")[0]
    assert "80%" in last
    assert "874/1,092 files" in last
    assert "40.0 MB/s" in last
    assert "2 s left" in last
