"""One look at everything, part by part.

Nothing raises: a part that cannot be looked at is told as a diagnostic, and the rest is told all the same. Nothing is
made or changed, not even a home that does not exist, and nobody is waited for long.
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

_UNTOLD: Facts = {"source": "gateway", "kind": "live"}

T = TypeVar("T")


def gather(
    home: Home,
    environment: Mapping[str, str] | None = None,
    now: datetime | None = None,
    cache: Path | None = None,
) -> Snapshot:
    looking = _Looking()
    written = looking.at("the config", lambda: configured.look(home), Settings())
    view = View(
        home=home,
        config=written.config,
        memory=memory.recall(home),
        daemon=looking.at("the daemon", lambda: Found(daemon.look(home)), {"state": "unknown"}),
        now=now or datetime.now(UTC),
        environment=surroundings(environment),
        cache=cache or cache_dir(),
    )
    itself = looking.at("the home", lambda: identity.look(home, view.memory), {"path": str(home.root)})
    # In this order: rows that are committed meanwhile are told twice rather than not at all.
    waiting = looking.at("the spool", lambda: waiting_rows.look(view), Spool())
    recorded = looking.at("the lake", lambda: lake.look(view), Lake())
    standing = looking.at("the clients", lambda: clients.look(view), list[Standing]())
    attached = [each.name for each in standing if each.is_attached]
    live = looking.at("the gateway", lambda: gateway.look(view, bool(attached)), _UNTOLD)
    private = looking.at("privacy", lambda: sources.privacy(view), Facts())
    delivered = looking.at("the sinks", lambda: delivery.look(view, recorded), list[Sink]())
    looking.said += daemon.diagnostics(view, _who_needs_it(view, attached))
    return Snapshot(
        home=itself,
        config=written.facts,
        daemon=dict(view.daemon),
        server=looking.at("the server", lambda: Found(server.look(home)), {"state": "unknown"}),
        engine=looking.at("the engine", lambda: engine.look(home, view.cache, view.environment), {"state": "unknown"}),
        clients=[each.as_json() for each in standing],
        sources=[{**live, **private}, *sources.history(view)],
        spool=waiting.as_json(),
        lake=recorded.sources,
        sinks=[each.as_json() for each in delivered],
        retention=looking.at("retention", lambda: retention.look(view, recorded), {}),
        disk=looking.at("the disk", lambda: disk.look(view, recorded, waiting), {}),
        diagnostics=_worst_first(looking.said),
    )


def _who_needs_it(view: View, attached: list[str]) -> list[str]:
    """What the daemon is there for, in words."""
    enabled = [name for name, each in view.config.clients.items() if each.enabled and name not in attached]
    return [
        *(f"{name} is attached" for name in attached),
        *(f"{name} is enabled" for name in enabled),
        *(f"{name} is a sink" for name in view.config.sinks),
    ]


def _worst_first(said: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Where nothing is set up, that is all there is to say, but for what is broken; where the home is no folder, all
    else is broken because of that."""
    found = sorted(dict.fromkeys(said), key=lambda each: SEVERITIES.index(each.severity))
    if no_folder := [each for each in found if each.kind == "home_no_folder"]:
        return tuple(no_folder)
    if any(each.kind == "not_set_up" for each in found):
        found = [each for each in found if each.severity == "error" or each.kind == "not_set_up"]
    return tuple(found)


class _Looking:
    """What is said on the way; also of what could not be looked at."""

    def __init__(self) -> None:
        self.said: list[Diagnostic] = []

    def at(self, what: str, look: Callable[[], Found[T]], otherwise: T) -> T:
        try:
            found = look()
        except Exception as trouble:
            why = f"{reason_of(trouble)} ({type(trouble).__name__})"
            self.said.append(error("unreadable", f"{what} could not be looked at: {why}", "hyp doctor"))
            return otherwise
        self.said += found.diagnostics
        return found.facts
