"""The config and the secrets that it names: there, readable, and nobody else's to read."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from hypaware.regular import open_regular
from hypaware.status import settings as written
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.diagnostic import reason_of
from hypaware.status.view import View


def config(view: View) -> Iterator[Check]:
    found = written.look(view.home)
    for said in found.diagnostics:
        yield failed("config", said.message, *said.repair)
    if not found.diagnostics:
        there = found.facts.facts["exists"]
        yield ok("config", f"{view.home.config} is valid" if there else "there is none, so the defaults count")


def secrets(view: View) -> Iterator[Check]:
    for sink, declared in view.config.sinks.items():
        for option, value in declared.options.items():
            if isinstance(value, str) and value and option.endswith("_file"):
                yield _file(f"secrets:{sink}", Path(value).expanduser())
            elif isinstance(value, str) and value and option.endswith("_env"):
                yield _variable(f"secrets:{sink}", value, view)


def _file(name: str, path: Path) -> Check:
    shown = shlex.quote(str(path))
    try:
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            filled = bool(file.read(1))
    except OSError as trouble:
        return failed(name, f"{path} cannot be read: {reason_of(trouble)}", f"ls -l {shown}")
    if not filled:
        return failed(name, f"{path} is empty", f"ls -l {shown}")
    if stat.S_IMODE(about.st_mode) & 0o077:
        return warning(name, f"others may read {path}", f"chmod 600 {shown}")
    return ok(name, f"{path} is there and yours alone")


def _variable(name: str, variable: str, view: View) -> Check:
    if view.environment.get(variable):
        return ok(name, f"{variable} is set here; the daemon has the environment that it was started with")
    return warning(name, f"{variable} is not set here; the daemon needs it in its own environment", f"echo ${variable}")
