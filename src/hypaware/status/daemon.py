"""The daemon: its lock shows whether it runs, its status file holds the details of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypaware import __version__
from hypaware.daemon import condition, instance
from hypaware.home import Home
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, error, info, warning
from hypaware.status.view import View

_FAILED = ("failed", "partial")


def look(home: Home) -> dict[str, Any]:
    pid = instance.running(home)
    if pid is None:
        return {"state": "stopped"}
    status = condition.read(home)
    # A file with another pid was left by an earlier daemon that was killed.
    return {"state": "running", "pid": pid, **(status if status.get("pid") == pid else {})}


def diagnostics(view: View, reasons: list[str]) -> Iterator[Diagnostic]:
    """Yield the daemon's diagnostics. `reasons` lists why this home needs a daemon."""
    if not view.is_daemon_running:
        if reasons and view.daemon["state"] == "stopped":
            yield error(
                "daemon_down",
                f"the daemon is not running, so nothing is recorded or exported automatically ({', '.join(reasons)})",
                "hyp daemon start",
            )
        return
    version = view.daemon.get("version")
    if version and version != __version__:
        yield warning(
            "daemon_outdated",
            f"the daemon runs version {version}, but {__version__} is installed",
            "hyp daemon restart",
        )
    yield from _task_diagnostics(view)


def _task_diagnostics(view: View) -> Iterator[Diagnostic]:
    flush, maintenance, imports = map(view.daemon_part, ("flush", "maintain", "catch_up"))
    if flush.get("last_status") in _FAILED:
        when = words.ago(flush.get("last_flush"), view.now)
        yield error("flush_failing", f"the daemon's last flush failed ({when})", "hyp flush", "hyp doctor")
    if maintenance.get("last_status") in _FAILED:
        when = words.ago(maintenance.get("last_run"), view.now)
        yield warning("maintenance_failing", f"the daemon's last maintenance failed ({when})", "hyp maintain")
    if isinstance(reason := maintenance.get("waits"), str) and reason != "off":
        yield info("maintenance_waits", reason, "hyp maintain")
    if imports.get("last_status") in _FAILED:
        when = words.ago(imports.get("last_run"), view.now)
        yield warning("catch_up_failing", f"the daemon's last transcript import failed ({when})", "hyp backfill")
