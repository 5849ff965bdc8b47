"""A plugin of pytest that collects tests once and runs those of each mutant in a process that it forks.

It runs in a copy of the tree. The file `HYP_MUTATION_PLAN` says what to do, in JSON: {modules, every, seconds, again,
trace, results}; the last two are files. `results` gets a line for each mutant.

First all tests run once in a fork, which notes in `trace` which of them execute which line of the modules, and how long
each takes. In the fork of a mutant, its functions replace the code of those of the imported module; processes that a
test starts find the mutant on the disk.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutation.mutants import Mutant, list_functions, make_mutants

_GRACE_SECONDS = 60.0
_AROUND = 40
_LOOK_BACK = 10
"""A line without an event of its own belongs to one of so many lines before it."""


@dataclass
class Coverage:
    """Which tests execute which lines of a module, and the CPU of each test with its children, in seconds."""

    lines: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=dict)

    def list_tests(self, line: int, limit: float) -> tuple[list[str], int]:
        """Return tests of a line, up to a number of seconds, and the number of all its tests.

        The lines around it take turns, the ones that fewest of these tests execute first, with the fastest test of
        each: so every branch near the mutant is tried early.
        """
        near = next((at for at in range(line, line - _LOOK_BACK, -1) if at in self.lines), line)
        of_line = self.lines.get(near, set())
        around = {frozenset(tests & of_line) for at, tests in self.lines.items() if abs(at - near) <= _AROUND}
        groups = [
            sorted(group, key=lambda test: (self.seconds.get(test, 0.0), test)) for group in sorted(around, key=len)
        ]
        chosen, spent = dict[str, None](), 0.0
        for test in filter(None, chain.from_iterable(zip_longest(*groups))):
            if test not in chosen and (not chosen or spent + self.seconds.get(test, 0.0) <= limit):
                spent += self.seconds.get(test, 0.0)
                chosen[test] = None
        return [*chosen], len(of_line)


class LineTrace:
    """Notes each line of some files that a test executes, at once, because the test may kill the process."""

    def __init__(self, path: Path, modules: Mapping[str, str]) -> None:
        self._output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._modules = modules
        """File → name."""
        self._seen: set[tuple[str, int]] = set()
        self._test = ""

    @contextmanager
    def of(self, test: str) -> Iterator[None]:
        self._test, began = test, sum(os.times()[:4])
        self._seen.clear()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self._write(test, sum(os.times()[:4]) - began)

    def _write(self, *values: object) -> None:
        os.write(self._output, json.dumps(values).encode() + b"\n")

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line(frame, event, argument) if frame.f_code.co_filename in self._modules else None

    def _line(self, frame: FrameType, _event: str, _argument: object) -> Any:
        place = (self._modules[frame.f_code.co_filename], frame.f_lineno)
        if place not in self._seen:
            self._seen.add(place)
            self._write(self._test, *place)
        return self._line


class TestRuns:
    """Runs collected tests in forks."""

    __test__ = False

    def __init__(self, session: pytest.Session) -> None:
        self._items = {item.nodeid: item for item in session.items}
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def run(self, tests: Sequence[str] | None = None) -> bool:
        """Run tests in this process until one fails. Return whether none did."""
        chosen = [self._items[name] for name in (self._items if tests is None else tests)]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return False
        return True

    def trace(self, path: Path, modules: Mapping[str, str]) -> None:
        """Run all tests in a fork. Raise SystemExit if one fails."""

        def run_traced() -> bool:
            trace = LineTrace(path, modules)
            for name in self._items:
                with trace.of(name):
                    self.run([name])
                if self._failed:
                    os.write(2, f"{name} fails without a mutant\n".encode())
                    return False
            return True

        if _fork(run_traced, None) != "survived":
            raise SystemExit("the tests fail without a mutant")


def read_trace(path: Path, modules: Iterable[str]) -> dict[str, Coverage]:
    found = {name: Coverage() for name in modules}
    for test, *rest in map(json.loads, path.read_text().splitlines()):
        if len(rest) == 1:
            for each in found.values():
                each.seconds[test] = rest[0]
        elif rest[0] in found:
            found[rest[0]].lines[rest[1]].add(test)
    return found


def _fork(work: Callable[[], bool], limit: float | None) -> str:
    """Run something in a fork. Return "survived" if it returned True, "endless" after the limit, else "noticed"."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            code = 0 if work() else 1
        finally:
            os._exit(code)
    until = time.monotonic() + (limit or float("inf"))
    outcome = "endless"
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            outcome = "noticed" if os.waitstatus_to_exitcode(status) else "survived"
            break
        time.sleep(0.01)
    # Its own children are in its session.
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if outcome == "endless":
        os.waitpid(child, 0)
    return outcome


def mutate(runs: TestRuns, module: ModuleType, covered: Coverage, plan: Mapping[str, Any]) -> Iterator[Any]:
    """Try the mutants of a module, and yield a description of each."""
    path = Path(str(module.__file__))
    original = path.read_bytes()
    for number, mutant in enumerate(make_mutants(original)):
        if number % plan["every"] or (plan["again"] is not None and mutant.title not in plan["again"]):
            continue
        tests, all_tests = covered.list_tests(mutant.line, plan["seconds"])
        limit = _GRACE_SECONDS + 10 * sum(covered.seconds.get(test, 0.0) for test in tests)
        path.write_bytes(mutant.source)
        try:
            outcome = _fork(lambda m=mutant, t=tests: _try(runs, module, m, t), limit) if tests else "not executed"  # type: ignore[misc]
        finally:
            path.write_bytes(original)
        about = {"mutant": mutant.title, "line": mutant.line, "outcome": outcome}
        yield {**about, "tests": len(tests), "all_tests": all_tests}


def _try(runs: TestRuns, module: ModuleType, mutant: Mutant, tests: Sequence[str]) -> bool:
    mutated = list_functions(mutant.source, str(module.__file__))
    for function in _functions_of(module):
        code = mutated[function.__code__.co_qualname]
        if len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code
    return runs.run(tests)


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions and methods that a module defines, without their decorators."""
    pending = list(vars(module).values())
    while pending:
        found = pending.pop()
        if isinstance(found, type) and found.__module__ == module.__name__:
            pending += vars(found).values()
        elif isinstance(found, property):
            pending += (found.fget, found.fset)
        elif isinstance(found, FunctionType) and not hasattr(found, "__wrapped__"):
            # Those that dataclasses make have no file.
            if found.__code__.co_filename == module.__file__:
                yield found
        else:
            # Context managers, caches, class methods and cached properties.
            inner = (getattr(found, name, None) for name in ("__wrapped__", "__func__", "func"))
            pending += (each for each in inner if callable(each))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    plan = json.loads(Path(os.environ["HYP_MUTATION_PLAN"]).read_text())
    modules = {name: importlib.import_module(f"hypaware.{name}") for name in plan["modules"]}
    runs = TestRuns(session)
    session.config.pluginmanager.register(runs)
    trace = Path(plan["trace"])
    if not trace.exists():
        runs.trace(trace, {str(module.__file__): name for name, module in modules.items()})
    covered = read_trace(trace, modules)
    with open(plan["results"], "a", encoding="utf-8", buffering=1) as results:
        for name, module in modules.items():
            for found in mutate(runs, module, covered[name], plan):
                results.write(json.dumps({"module": name, **found}, ensure_ascii=False) + "\n")
    return True
