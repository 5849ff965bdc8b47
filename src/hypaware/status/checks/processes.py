"""Who is at work in the home: one daemon, one engine; and whoever holds the lake without being one of them."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware import lock_file, residents
from hypaware.status import engine as asked
from hypaware.status.checks.check import Check, ok, warning
from hypaware.status.view import View


def daemon(view: View) -> Iterator[Check]:
    if view.runs:
        yield ok("daemon", f"runs as process {view.daemon.get('pid')}")
    elif any(each.enabled for each in view.config.clients.values()) or view.config.sinks:
        yield warning("daemon", "does not run: nothing is recorded or delivered by itself", "hyp daemon start")
    else:
        yield ok("daemon", "does not run")


def engine(view: View) -> Iterator[Check]:
    told = asked.look(view.home, view.cache, view.environment).facts
    if told["state"] == "not_answering":
        yield warning(
            "engine", f"process {told.get('pid')} holds the engine's lock and does not answer", "hyp engine stop"
        )
        return
    if told["state"] == "running":
        yield ok("engine", f"runs as process {told.get('pid')}")
        return
    found = residents.first(view.home)
    if found and found.what == "a Spark process" and not lock_file.is_taken(view.home.engine_lock):
        yield warning(
            "engine",
            f"process {found.pid} holds the lake and is not this home's engine: a command that runs Spark itself, "
            "or what is left of an engine",
            f"ps -fp {found.pid}",
        )
    else:
        yield ok("engine", "does not run; it is started when it is needed")
