"""The snapshot of a home for `hyp status`: its parts, their diagnostics, and the overall status.

- **down**: nothing is recorded. The home is not set up or not usable, or the daemon is not running although a client or
  a sink needs it.
- **degraded**: there is an error or a warning.
- **ok**: otherwise.

A part that fails becomes a diagnostic and does not affect the others; nothing raises. Nothing is created or changed,
not even a home that does not exist, and no part waits long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from hypaware.clients import original_install
from hypaware.home import Home, cache_dir
from hypaware.state.snapshot import read_snapshot
from hypaware.status import clients, home_health, processes, session_expiry, sinks, storage
from hypaware.status.clients import ClientStatus
from hypaware.status.diagnostics import SEVERITIES, Diagnostic, PartStatus, StatusInput, error, warning
from hypaware.status.home_health import ConfigStatus
from hypaware.status.sinks import SinkStatus
from hypaware.status.storage import LakeStatus, SpoolStatus
from hypaware.text import summarize_error

_DOWN_KINDS = ("not_set_up", "home_no_folder", "home_is_backup", "state_too_new", "daemon_down")

Facts = dict[str, Any]
T = TypeVar("T")

_NO_GATEWAY: Facts = {"source": "gateway", "kind": "live"}


@dataclass(frozen=True)
class StatusSnapshot:
    home: Facts
    config: Facts
    daemon: Facts
    server: Facts
    engine: Facts
    clients: list[Facts]
    sources: list[Facts]
    spool: Facts
    lake: list[Facts]
    sinks: list[Facts]
    retention: Facts
    disk: Facts
    diagnostics: tuple[Diagnostic, ...]
    """Sorted by severity, errors first."""

    @property
    def overall(self) -> str:
        if any(each.kind in _DOWN_KINDS for each in self.diagnostics):
            return "down"
        return "degraded" if any(each.severity != "info" for each in self.diagnostics) else "ok"

    def as_json(self) -> Facts:
        diagnostics = [each.as_json() for each in self.diagnostics]
        return {"overall": self.overall, **vars(self), "diagnostics": diagnostics}


def read_input(
    collector: Collector,
    home: Home,
    environment: Mapping[str, str] | None,
    now: datetime | None,
    cache: Path | None,
) -> tuple[StatusInput, Facts]:
    """Return the input of all parts, and the facts about the config."""
    written = collector.run("the config", lambda: home_health.inspect_config(home), ConfigStatus())
    daemon = collector.run("the daemon", lambda: PartStatus(processes.inspect_daemon(home)), {"state": "unknown"})
    inputs = StatusInput(
        home=home,
        config=written.config,
        state=read_snapshot(home),
        daemon=daemon,
        now=now or datetime.now(UTC),
        # Clients need HOME.
        environment={"HOME": str(Path.home()), **(os.environ if environment is None else environment)},
        cache=cache or cache_dir(),
    )
    return inputs, written.facts


def collect_snapshot(
    home: Home, environment: Mapping[str, str] | None = None, now: datetime | None = None, cache: Path | None = None
) -> StatusSnapshot:
    collector = Collector()
    inputs, config_facts = read_input(collector, home, environment, now, cache)
    home_facts = collector.run(
        "the home", lambda: home_health.inspect_home(home, inputs.state), {"path": str(home.root)}
    )
    # Read the spool before the lake: rows committed in between are counted twice rather than not at all.
    spooled = collector.run("the spool", lambda: storage.inspect_spool(inputs), SpoolStatus())
    tables = collector.run("the lake", lambda: storage.inspect_lake(inputs), LakeStatus())
    known_clients = collector.run("the clients", lambda: clients.inspect_clients(inputs), list[ClientStatus]())
    collector.run("the original installation", lambda: clients.inspect_original(inputs), None)
    history = collector.run("the clients' history", lambda: session_expiry.inspect_history(inputs), Facts())
    attached = [each.name for each in known_clients if each.is_attached]
    live = collector.run("the gateway", lambda: processes.inspect_gateway(inputs, bool(attached)), _NO_GATEWAY)
    telemetry = collector.run("the OTLP receiver", lambda: processes.inspect_otlp(inputs), None)
    private = collector.run("privacy", lambda: storage.inspect_privacy(inputs), Facts())
    known_sinks = collector.run("the sinks", lambda: sinks.inspect_sinks(inputs, tables), list[SinkStatus]())
    enabled = [name for name, each in inputs.config.clients.items() if each.enabled and name not in attached]
    reasons_for_daemon = [
        *(f"{name} is attached" for name in attached),
        *(f"{name} is enabled" for name in enabled),
        *(f"{name} is a sink" for name in inputs.config.sinks),
        *(["otlp.listen is set"] if inputs.config.otlp.listen else ()),
    ]
    collector.diagnostics += processes.daemon_diagnostics(inputs, reasons_for_daemon)
    unknown = {"state": "unknown"}
    server = collector.run("the server", lambda: PartStatus(processes.inspect_server(home)), unknown)
    is_idle = inputs.daemon["state"] == server["state"] == "stopped" and not reasons_for_daemon
    if is_idle and not spooled.rows and not any(each["rows"] for each in tables.sources):
        message = "nothing is recorded, and nothing runs that would record"
        collector.diagnostics.append(warning("nothing_recorded", message, "hyp setup"))
    return StatusSnapshot(
        home=home_facts,
        config=config_facts,
        daemon=dict(inputs.daemon),
        server=server,
        engine=collector.run(
            "the engine", lambda: processes.inspect_engine(home, inputs.cache, inputs.environment), unknown
        ),
        clients=[{**each.as_json(), "history": history.get(each.name)} for each in known_clients],
        sources=[{**live, **private}, *([telemetry] if telemetry else ()), *storage.list_history(inputs)],
        spool=asdict(spooled),
        lake=tables.sources,
        sinks=[each.as_json() for each in known_sinks],
        retention=collector.run("retention", lambda: storage.inspect_retention(inputs, tables), {}),
        disk=collector.run("the disk", lambda: home_health.inspect_disk(inputs, tables, spooled), {}),
        diagnostics=_worst_first(collector.diagnostics),
    )


def _worst_first(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by severity, and drop what follows from a more basic problem.

    If the home is not a folder, that is the only diagnostic. If nothing is set up, only that, errors, and what is there
    of the JavaScript original are shown.
    """
    found = sorted(dict.fromkeys(diagnostics), key=lambda each: SEVERITIES.index(each.severity))
    if no_folder := [each for each in found if each.kind == "home_no_folder"]:
        return tuple(no_folder)
    if any(each.kind == "not_set_up" for each in found):
        kept = ("not_set_up", *original_install.KINDS)
        found = [each for each in found if each.severity == "error" or each.kind in kept]
    return tuple(found)


class Collector:
    """Runs the parts and gathers their diagnostics, including those of parts that fail."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def run(self, what: str, inspect: Callable[[], PartStatus[T]], default: T) -> T:
        try:
            found = inspect()
        except Exception as exception:
            why = f"{summarize_error(exception)} ({type(exception).__name__})"
            self.diagnostics.append(error("unreadable", f"cannot inspect {what}: {why}", "hyp doctor"))
            return default
        self.diagnostics += found.diagnostics
        return found.facts
