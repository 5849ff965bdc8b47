"""Collect the snapshot of a home, part by part.

A part that fails becomes a diagnostic and does not affect the others; nothing raises. Nothing is created or changed,
not even a home that does not exist, and no part waits long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from hypaware.home import Home, cache_dir
from hypaware.status import clients, daemon, disk, engine, gateway, identity, lake, memory, retention, server, sources
from hypaware.status import settings as configured
from hypaware.status import sinks as delivery
from hypaware.status import spool as waiting_rows
from hypaware.status.clients import Standing
from hypaware.status.diagnostic import SEVERITIES, Diagnostic, Found, error, reason_of
from hypaware.status.lake import Lake
from hypaware.status.settings import Settings
from hypaware.status.sinks import Sink
from hypaware.status.snapshot import Facts, Snapshot
from hypaware.status.spool import Spool
from hypaware.status.view import View, surroundings

_NO_GATEWAY: Facts = {"source": "gateway", "kind": "live"}

T = TypeVar("T")


def gather(
    home: Home,
    environment: Mapping[str, str] | None = None,
    now: datetime | None = None,
    cache: Path | None = None,
) -> Snapshot:
    collector = _Looking()
    written = collector.run("the config", lambda: configured.look(home), Settings())
    view = View(
        home=home,
        config=written.config,
        state=memory.recall(home),
        daemon=collector.run("the daemon", lambda: Found(daemon.look(home)), {"state": "unknown"}),
        now=now or datetime.now(UTC),
        environment=surroundings(environment),
        cache=cache or cache_dir(),
    )
    home_facts = collector.run("the home", lambda: identity.look(home, view.state), {"path": str(home.root)})
    # Read the spool before the lake: rows committed in between are counted twice rather than not at all.
    spooled = collector.run("the spool", lambda: waiting_rows.look(view), Spool())
    tables = collector.run("the lake", lambda: lake.look(view), Lake())
    known_clients = collector.run("the clients", lambda: clients.look(view), list[Standing]())
    attached = [each.name for each in known_clients if each.is_attached]
    live = collector.run("the gateway", lambda: gateway.look(view, bool(attached)), _NO_GATEWAY)
    private = collector.run("privacy", lambda: sources.privacy(view), Facts())
    known_sinks = collector.run("the sinks", lambda: delivery.look(view, tables), list[Sink]())
    collector.diagnostics += daemon.diagnostics(view, _reasons_for_daemon(view, attached))
    unknown = {"state": "unknown"}
    return Snapshot(
        home=home_facts,
        config=written.facts,
        daemon=dict(view.daemon),
        server=collector.run("the server", lambda: Found(server.look(home)), unknown),
        engine=collector.run("the engine", lambda: engine.look(home, view.cache, view.environment), unknown),
        clients=[each.as_json() for each in known_clients],
        sources=[{**live, **private}, *sources.history(view)],
        spool=spooled.as_json(),
        lake=tables.sources,
        sinks=[each.as_json() for each in known_sinks],
        retention=collector.run("retention", lambda: retention.look(view, tables), {}),
        disk=collector.run("the disk", lambda: disk.look(view, tables, spooled), {}),
        diagnostics=_worst_first(collector.diagnostics),
    )


def _reasons_for_daemon(view: View, attached: list[str]) -> list[str]:
    """Return why this home needs a daemon, as text."""
    enabled = [name for name, each in view.config.clients.items() if each.enabled and name not in attached]
    return [
        *(f"{name} is attached" for name in attached),
        *(f"{name} is enabled" for name in enabled),
        *(f"{name} is a sink" for name in view.config.sinks),
    ]


def _worst_first(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by severity, and drop what follows from a more basic problem.

    If the home is not a folder, that is the only diagnostic. If nothing is set up, only errors are shown besides it.
    """
    found = sorted(dict.fromkeys(diagnostics), key=lambda each: SEVERITIES.index(each.severity))
    if no_folder := [each for each in found if each.kind == "home_no_folder"]:
        return tuple(no_folder)
    if any(each.kind == "not_set_up" for each in found):
        found = [each for each in found if each.severity == "error" or each.kind == "not_set_up"]
    return tuple(found)


class _Looking:
    """Runs the parts and gathers their diagnostics, including those of parts that fail."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def run(self, what: str, inspect: Callable[[], Found[T]], default: T) -> T:
        try:
            found = inspect()
        except Exception as exception:
            why = f"{reason_of(exception)} ({type(exception).__name__})"
            self.diagnostics.append(error("unreadable", f"cannot inspect {what}: {why}", "hyp doctor"))
            return default
        self.diagnostics += found.diagnostics
        return found.facts
