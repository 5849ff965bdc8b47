"""Progress of work that is measured in bytes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest

from hypaware.cli.jobs import ProgressLines, event_handler

Capture = pytest.CaptureFixture[str]
MB = 10**6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_progress_line_shows_files_rows_speed_and_remaining_time(capfd: Capture) -> None:
    clock = Clock()
    lines = ProgressLines(clock)

    lines.report("importing", 0, 500 * MB, unit="bytes", files=0, files_total=1092, rows=0)
    clock.now = 10.0
    lines.report("importing", 400 * MB, 500 * MB, unit="bytes", files=874, files_total=1092, rows=300_829)
    clock.now = 20.0
    lines.report("importing", 500 * MB, 500 * MB, unit="bytes", files=1092, files_total=1092, rows=376_036)

    assert capfd.readouterr().err.splitlines() == [
        "importing 0%, 0/1,092 files, 0 rows",
        "importing 80%, 874/1,092 files, 300,829 rows, 40.0 MB/s, 2 seconds left",
        "importing 100%, 1,092/1,092 files, 376,036 rows, 25.0 MB/s",
    ]


@pytest.mark.parametrize(
    ("speed", "left"), [(1.0, "8 minutes left"), (0.1, "83 minutes left"), (20.0, "25 seconds left")]
)
def test_the_remaining_time_has_a_fitting_unit(capfd: Capture, speed: float, left: str) -> None:
    clock = Clock()
    lines = ProgressLines(clock)
    lines.report("importing", 0, 500 * MB + 10 * speed * MB, unit="bytes")
    clock.now = 10.0
    lines.report("importing", 10 * speed * MB, 500 * MB + 10 * speed * MB, unit="bytes")

    assert capfd.readouterr().err.splitlines()[-1].endswith(left)


def test_the_speed_is_measured_per_message(capfd: Capture) -> None:
    """An earlier step does not affect the speed of this one."""
    clock = Clock()
    lines = ProgressLines(clock)
    lines.report("reading", 0, 100 * MB, unit="bytes")
    clock.now = 100.0
    lines.report("writing", 50 * MB, 100 * MB, unit="bytes")
    clock.now = 110.0
    lines.report("writing", 60 * MB, 100 * MB, unit="bytes")

    assert capfd.readouterr().err.splitlines()[1:] == ["writing 50%", "writing 60%, 1.0 MB/s, 40 seconds left"]


def test_work_without_bytes_is_shown_without_a_speed(capfd: Capture) -> None:
    ProgressLines(Clock()).report("committing", 1, 4, unit="rows", files=3)

    assert capfd.readouterr().err == "committing 25%\n"


def test_the_progress_of_a_job_reaches_the_display(capfd: Capture) -> None:
    handle = event_handler(ProgressLines(Clock()), lambda _chunk: None)

    handle({"event": "progress", "message": "importing", "done": 1, "total": 2, "unit": "bytes", "files": 7, "rows": 9})

    assert capfd.readouterr().err == "importing 50%, 7 files, 9 rows\n"


@pytest.mark.parametrize("columns", ["80", "200"])
def test_on_a_terminal_speed_and_bar_share_one_line(columns: str) -> None:
    script = textwrap.dedent(
        """
        from hypaware.cli.jobs import ProgressBar
        now = [0.0]
        bar = ProgressBar(lambda: now[0])
        bar.report('importing claude', 0, 5e8, unit='bytes', files=0, files_total=1092, rows=0)
        now[0] = 10.0
        bar.report('importing claude', 4e8, 5e8, unit='bytes', files=874, files_total=1092, rows=300829)
        bar.clear()
        """
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
    assert "2 seconds left" in last
