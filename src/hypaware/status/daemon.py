"""The daemon: whether it runs, and what it said of its work. Its lock tells the truth, its file the details."""

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
    told = condition.read(home)
    # Else the one before it wrote that, and was killed.
    return {"state": "running", "pid": pid, **(told if told.get("pid") == pid else {})}


def diagnostics(view: View, wanted_by: list[str]) -> Iterator[Diagnostic]:
    """`wanted_by`: what needs a daemon in this home, in words."""
    if not view.runs:
        if wanted_by and view.daemon["state"] == "stopped":
            yield error(
                "daemon_down",
                f"the daemon does not run, so nothing is recorded or delivered by itself ({', '.join(wanted_by)})",
                "hyp daemon start",
            )
        return
    version = view.daemon.get("version")
    if version and version != __version__:
        yield warning(
            "daemon_outdated", f"the daemon runs version {version}, {__version__} is installed", "hyp daemon restart"
        )
    yield from _of_work(view)


def _of_work(view: View) -> Iterator[Diagnostic]:
    flush, upkeep, catch_up = map(view.of_daemon, ("flush", "maintain", "catch_up"))
    if flush.get("last_status") in _FAILED:
        when = words.ago(flush.get("last_flush"), view.now)
        yield error("flush_failing", f"the daemon could not commit the spool, last {when}", "hyp flush", "hyp doctor")
    if upkeep.get("last_status") in _FAILED:
        when = words.ago(upkeep.get("last_run"), view.now)
        yield warning("maintenance_failing", f"the lake could not be maintained, last {when}", "hyp maintain")
    if isinstance(waits := upkeep.get("waits"), str) and waits != "off":
        yield info("maintenance_waits", waits, "hyp maintain")
    if catch_up.get("last_status") in _FAILED:
        when = words.ago(catch_up.get("last_run"), view.now)
        yield warning("catch_up_failing", f"what clients wrote down could not be imported, last {when}", "hyp backfill")
