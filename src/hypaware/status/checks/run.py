"""Run all checks in order. A check that raises an exception has failed; the others still run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from hypaware.config import Config
from hypaware.errors import HypError
from hypaware.home import Home, cache_dir
from hypaware.status import daemon, memory
from hypaware.status import settings as written
from hypaware.status.checks import clients, clock, databases, folders, gateway, machine, processes, settings, sinks
from hypaware.status.checks.check import Check, failed
from hypaware.status.diagnostic import reason_of
from hypaware.status.view import View, surroundings

Look = Callable[[View], Iterator[Check]]

ALL: tuple[tuple[str, Look], ...] = (
    ("python", machine.python),
    ("java", machine.java_runtime),
    ("jars", machine.engine_jars),
    ("class_archive", machine.class_archive),
    ("permissions", folders.permissions),
    ("file_system", folders.kind_of_disk),
    ("disk", folders.room),
    ("sync", folders.keeping),
    ("config", settings.config),
    ("secrets", settings.secrets),
    ("state", databases.state),
    ("catalog", databases.catalog),
    ("key_index", databases.key_index),
    ("tombstones", databases.tombstones),
    ("clock", clock.against_the_home),
    ("daemon", processes.daemon),
    ("engine", processes.engine),
    ("gateway", gateway.port),
    ("clients", clients.each),
    ("sinks", sinks.each),
)


def begin(
    home: Home, environment: Mapping[str, str] | None = None, now: datetime | None = None, cache: Path | None = None
) -> View:
    """Return the input of all checks."""
    try:
        config = written.look(home).facts.config
    except HypError:
        config = Config()
    try:
        running = daemon.look(home)
    except OSError:
        running = {"state": "unknown"}
    return View(
        home=home,
        config=config,
        state=memory.recall(home),
        daemon=running,
        now=now or datetime.now(UTC),
        environment=surroundings(environment),
        cache=cache or cache_dir(),
    )


def run(view: View, report: Callable[[str, float, float], None]) -> Iterator[Check]:
    for number, (name, check) in enumerate(ALL):
        report("checking", number, len(ALL))
        try:
            yield from check(view)
        except Exception as error:
            yield failed(name, f"the check failed: {reason_of(error)} ({type(error).__name__})")
