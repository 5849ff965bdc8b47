"""Run pytest, then run every failed test once more, alone.

    python -m scripts.run_tests [PYTEST_ARGUMENT ...]

A test that fails and then passes is flaky: its name is printed at the end and appended to `.flaky-tests`, and the run
counts as passed. A test that fails both times fails the run, and so does anything that pytest cannot name as a failed
test: an error during collection, an interrupt, no tests at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FLAKY_TESTS = Path(".flaky-tests")
# Run options that make no sense for a single test.
_PARALLEL = ("-n", "--numprocesses", "--dist")
# A run with more failures than this is broken, not flaky.
_MOST_RERUNS = 20


class FailedTests:
    """A pytest plugin that collects the ids of failed tests, from xdist's workers too."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.ids:
            self.ids.append(report.nodeid)


def run(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments and return the exit status of the run."""
    failed = FailedTests()
    status = int(pytest.main(list(arguments), plugins=[failed]))
    if status != pytest.ExitCode.TESTS_FAILED or not failed.ids:
        return status
    if len(failed.ids) > _MOST_RERUNS:
        print(f"\n{len(failed.ids)} tests failed: too many to be flaky, not run again", flush=True)
        return status
    flaky = [test for test in failed.ids if _passes_alone(test, _options(arguments))]
    _report(flaky, [test for test in failed.ids if test not in flaky])
    return 0 if len(flaky) == len(failed.ids) else status


def _options(arguments: Sequence[str]) -> list[str]:
    """Keep the options that hold for a single test: neither paths nor what spreads tests over processes."""
    options = []
    rest = iter(arguments)
    for argument in rest:
        if argument in _PARALLEL:
            next(rest, None)
        elif argument in ("-o", "-m", "-p"):
            options += [argument, next(rest, "")]
        elif argument.startswith("-") and not argument.startswith(("--durations", *_PARALLEL)):
            options.append(argument)
    return options


def _passes_alone(test: str, options: Sequence[str]) -> bool:
    print(f"\nrunning once more, alone: {test}", flush=True)
    command = [sys.executable, "-m", "pytest", *options, test]
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode == 0


def _report(flaky: Sequence[str], broken: Sequence[str]) -> None:
    lines = [
        *(f"flaky (failed, then passed alone): {test}" for test in flaky),
        *(f"failed twice: {test}" for test in broken),
    ]
    print("", *lines, sep="\n", flush=True)
    if flaky:
        with FLAKY_TESTS.open("a", encoding="utf-8") as file:
            file.writelines(f"{test}\n" for test in flaky)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(run(sys.argv[1:]))
