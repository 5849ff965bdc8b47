"""Check the home's processes: the daemon, the engine, and other processes that hold the lake."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware import lock_file, residents
from hypaware.status import engine as asked
from hypaware.status.checks.check import Check, ok, warning
from hypaware.status.view import View


def daemon(view: View) -> Iterator[Check]:
    if view.is_daemon_running:
        yield ok("daemon", f"running as process {view.daemon.get('pid')}")
    elif any(each.enabled for each in view.config.clients.values()) or view.config.sinks:
        yield warning("daemon", "not running: nothing is recorded or exported automatically", "hyp daemon start")
    else:
        yield ok("daemon", "not running")


def engine(view: View) -> Iterator[Check]:
    status = asked.look(view.home, view.cache, view.environment).facts
    if status["state"] == "not_answering":
        yield warning(
            "engine", f"process {status.get('pid')} holds the engine's lock but does not answer", "hyp engine stop"
        )
        return
    if status["state"] == "running":
        yield ok("engine", f"running as process {status.get('pid')}")
        return
    found = residents.first(view.home)
    if found and found.name == "a Spark process" and not lock_file.is_taken(view.home.engine_lock):
        yield warning(
            "engine",
            f"process {found.pid} holds the lake but is not this home's engine: a command that runs Spark itself, "
            "or a leftover of an engine",
            f"ps -fp {found.pid}",
        )
    else:
        yield ok("engine", "not running; it starts when it is needed")
