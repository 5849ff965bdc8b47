"""`scripts/run_tests.py` runs each failed test once more, alone, and prints its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_tests(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "scripts.run_tests", *options, f"--rootdir={folder}", str(folder)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


FAILS_ONCE = """
from pathlib import Path
MARK = Path(__file__).with_name("ran")
def test_steady(): pass
def test_shaky():
    first = not MARK.exists()
    MARK.touch()
    assert not first
"""


def test_a_test_that_passes_alone_is_named_as_flaky_and_the_run_passes(tmp_path: Path) -> None:
    done = run_tests(tmp_path, FAILS_ONCE)

    assert done.returncode == 0, done.stdout
    assert "flaky (failed, then passed alone): test_sample.py::test_shaky" in done.stdout
    assert (tmp_path / ".flaky-tests").read_text() == "test_sample.py::test_shaky\n"


def test_failures_in_parallel_workers_are_run_again_too(tmp_path: Path) -> None:
    done = run_tests(tmp_path, FAILS_ONCE, "-n", "2")

    assert done.returncode == 0, done.stdout
    assert "flaky (failed, then passed alone): test_sample.py::test_shaky" in done.stdout


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "def test_broken(): assert False\n")

    assert done.returncode == 1
    assert "failed twice: test_sample.py::test_broken" in done.stdout
    assert not (tmp_path / ".flaky-tests").exists()


def test_a_failed_teardown_counts_as_a_failure(tmp_path: Path) -> None:
    done = run_tests(
        tmp_path,
        "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    raise OSError\ndef test_uses_it(broken): pass\n",
    )

    assert done.returncode == 1
    assert "failed twice: test_sample.py::test_uses_it" in done.stdout


def test_an_error_during_collection_fails_the_run(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "import no_such_module\n").returncode not in (0, 1)


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "").returncode not in (0, 1)
