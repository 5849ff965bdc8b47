"""Check the config, and that the secrets it names exist and are readable only by the user."""

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
    for each in found.diagnostics:
        yield failed("config", each.message, *each.repair)
    if not found.diagnostics:
        exists = found.facts.facts["exists"]
        yield ok("config", f"{view.home.config} is valid" if exists else "there is none; the defaults are used")


def secrets(view: View) -> Iterator[Check]:
    for sink, declared in view.config.sinks.items():
        for option, value in declared.options.items():
            if isinstance(value, str) and value and option.endswith("_file"):
                yield _check_secret_file(f"secrets:{sink}", Path(value).expanduser())
            elif isinstance(value, str) and value and option.endswith("_env"):
                yield _check_variable(f"secrets:{sink}", value, view)


def _check_secret_file(name: str, path: Path) -> Check:
    shown = shlex.quote(str(path))
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            is_empty = not file.read(1)
    except OSError as error:
        return failed(name, f"{path} cannot be read: {reason_of(error)}", f"ls -l {shown}")
    if is_empty:
        return failed(name, f"{path} is empty", f"ls -l {shown}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        return warning(name, f"other users can read {path}", f"chmod 600 {shown}")
    return ok(name, f"{path} exists and only you can read it")


def _check_variable(name: str, variable: str, view: View) -> Check:
    if view.environment.get(variable):
        return ok(name, f"{variable} is set here; the daemon uses the environment it was started with")
    return warning(name, f"{variable} is not set here; the daemon needs it in its own environment", f"echo ${variable}")
