"""Error reports of commands: what is printed, where the details are, which exit code.

| error | stderr | with --json, on stdout | exit code |
|---|---|---|---|
| HypError | `error:` and `try:` lines | `error:{kind, message, repair?}` | that of its class |
| wrong usage | `error:`, `usage:`, `try:` | kind `usage` | 2 |
| disk full | `error:` and `try:` lines | kind `disk_full` | 1 |
| a file that cannot be read or written | `error:` with its name | kind `file_unavailable` | 1 |
| Ctrl-C | `cancelled` | kind `cancelled` | 130 |
| anything else | one line, with the path of the traceback | kind `internal` | 1 |
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.errors import Cancelled, HypError, Retryable, UsageError
from hypaware.home import Home

_LOG_LIMIT = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Problems of permissions and file systems: not errors of the program.
_FILE_ERRORS = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


class PartlyFailed(HypError):
    """A part of the work failed; the report covers the rest. With --json one document holds both."""

    def __init__(
        self,
        message: str,
        report: dict[str, Any],
        *,
        kind: str | None = None,
        repair: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(message, kind=kind, repair=repair)
        self.report = report


def show(error: BaseException, as_json: bool) -> int:
    """Print the error and return the exit code of the process."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        error.show()
        return error.exit_code
    failure, usage = _translate(error)
    if as_json and not output.emitted():
        report = failure.report if isinstance(failure, PartlyFailed) else {}
        output.emit_json({**report, "error": failure.as_json()})
    else:
        output.note("cancelled" if isinstance(failure, Cancelled) else f"error: {failure.message}")
        if usage:
            output.note(usage)
        for command in failure.repair:
            output.note(f"try: {command}")
    return failure.exit_code


def _translate(error: BaseException) -> tuple[HypError, str | None]:
    if isinstance(error, HypError):
        return error, None
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Cancelled(), None
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError("Missing subcommand.", repair=f"{error.ctx.command_path} --help"), None
    if isinstance(error, click.UsageError):
        context = error.ctx
        repair = f"{context.command_path} --help" if context else "hyp --help"
        usage = " ".join(context.get_usage().split()).replace("Usage:", "usage:", 1) if context else None
        return UsageError(error.format_message(), repair=repair), usage
    if isinstance(error, click.ClickException):
        return UsageError(error.format_message()), None
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        where = f": cannot write {error.filename}" if error.filename else ""
        return Retryable(f"the disk is full{where}", kind="disk_full", repair="hyp status"), None
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        return HypError(what, kind="file_unavailable", repair="hyp doctor"), None
    return _unexpected(error), None


def _unexpected(error: BaseException) -> HypError:
    detail = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {error}".strip(": ")
    summary = f"unexpected {what.splitlines()[0][:300]}"
    if os.environ.get("HYP_DEBUG") == "1":
        sys.stderr.write(detail)
        return HypError(summary, kind="internal")
    if log := _log(detail):
        return HypError(f"{summary} (details in {log})", kind="internal")
    return HypError(f"{summary} (set HYP_DEBUG=1 to see the details)", kind="internal")


def _log(detail: str) -> Path | None:
    """Append the traceback to the log of an existing home and return the path; never create a home."""
    home = Home.from_environment()
    if not home.root.is_dir():
        return None
    path = home.logs / "cli.log"
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_LIMIT:
            path.replace(path.with_name("cli.log.1"))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{stamp} pid={os.getpid()} hypaware={__version__}\n{detail}\n")
        return path
    return None
