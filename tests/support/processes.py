"""Runs Python snippets in real processes, which tests can kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hypaware.home import Home

_ROOT = Path(__file__).parents[2]
PATIENCE = 300
"""Seconds, for whatever takes a moment where nothing else runs: only a test that has failed waits for so long."""


def run(code: str, home: Home, *args: object, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the snippet until it ends. Its arguments are in sys.argv[1:], its home in HYP_HOME."""
    return subprocess.run(
        _command(code, args),
        env=_environment(home, crash_at),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def succeed(code: str, home: Home, *args: object) -> str:
    """Run the snippet, which must succeed, and return its output."""
    done = run(code, home, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(code: str, home: Home, *args: object, crash_at: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start the snippet with pipes for its input and output, and kill it at the end if it still runs."""
    with subprocess.Popen(
        _command(code, args),
        env=_environment(home, crash_at),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def open_umask() -> Iterator[None]:
    """Let everyone read the files that this process and the processes that it starts create, unless they object."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def read_umask(pid: int) -> int:
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux shows the umask of a process")
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Umask:")]
    return int(line.split()[1], 8)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL


def was_killed(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == -signal.SIGKILL


def fork(work: Callable[[], object]) -> int:
    """Run the work in a forked child and return its exit code: 0, 1 if it raised, -n if signal n ended it."""
    return together([work])[0]


def together(works: Sequence[Callable[[], object]]) -> list[int]:
    """Run each of the works in a forked child, concurrently, and return their exit codes like `fork`."""
    children = [_forked(work) for work in works]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _forked(work: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn about a fork with threads, which these tests do on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def open_files(below: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(f"{below}/")]


def wait_until_gone(pid: int) -> None:
    """Wait for a process, which need not be a child."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENCE)


def eventually(condition: Callable[[], object]) -> None:
    """Wait for the condition. Fail the test if it stays false."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition stayed false"
        time.sleep(0.002)


def _command(code: str, args: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


def _environment(home: Home, crash_at: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HYP_")}
    crash = {"HYP_CRASH_AT": crash_at} if crash_at else {}
    return {**kept, **crash, "HYP_HOME": str(home.root), "PYTHONPATH": str(_ROOT)}
