"""`make team` as a user runs it: every printed command works, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from demo.team import ROWS
from hypaware.home import cache_dir
from tests.support.processes import PATIENCE, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a folder outside of pytest's own, into which PostgreSQL's unprivileged user can go."""
    with tempfile.TemporaryDirectory(prefix="hyp-team-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def team(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run it in a process group of its own, like a terminal, and yield the lines that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HYP_", "AWS_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "demo.team"],
        cwd=ROOT,
        env={**environment, "HYP_CACHE": str(cache_dir()), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if line.startswith("Running."):
                    break
            yield process, lines
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                rest, _ = process.communicate(timeout=PATIENCE)
                lines.append(rest)


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that refer to it in their command line or environment."""
    found = []
    for each in psutil.process_iter():
        try:
            known = [*each.cmdline(), *each.environ().values()]
        except (psutil.Error, OSError):
            continue
        if each.pid != os.getpid() and any(str(folder) in word for word in known):
            found.append(each)
    return found


@pytest.mark.spark
def test_every_command_that_make_team_prints_works_and_ctrl_c_stops_everything(temporary: Path) -> None:
    with team(temporary) as (process, lines):
        assert lines[-1].startswith("Running."), lines
        commands = [line for line in lines if line.startswith("   ")]
        assert len(commands) == 10, commands
        # `source .venv/bin/activate` of the project, whose Python this is.
        script = "\n".join(["set -ex", f"PATH={Path(sys.executable).parent}:$PATH", *commands[1:]])
        script = script.replace("hyp query sql", "hyp query sql --format json")
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [int(number) for number in re.findall(r'"parts": ?(\d+)', done.stdout)] == [ROWS], done.stdout
        (folder,) = temporary.glob("hyp-demo-*")
        assert list((folder / "cluster").glob("worker-*/app-*/*/stderr")), "executors ran the jobs"
        assert list((folder / "s3").rglob("*.parquet"))
        assert not list((folder / "flusher").rglob("*.parquet"))
    assert process.returncode == 0, lines
    assert "Everything is stopped." in lines[-1]
    assert list(temporary.iterdir()) == []
    eventually(lambda: not processes_in(temporary))
