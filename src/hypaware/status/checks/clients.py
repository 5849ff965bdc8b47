"""Each client: which version is installed, and whether what attach wrote is in force."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from hypaware import plugins
from hypaware.clients import attach
from hypaware.clients.client import Client
from hypaware.status import clients
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.clients import Standing
from hypaware.status.diagnostic import reason_of
from hypaware.status.view import View

_SECONDS = 10.0


def each(view: View) -> Iterator[Check]:
    found = clients.look(view)
    known = {client.name: client for client in plugins.load(plugins.CLIENTS, Client)}
    for standing in found.facts:
        name = f"client:{standing.name}"
        if not standing.installed:
            yield ok(name, "is not installed here")
            continue
        version, wrong = _version(standing)
        if wrong:
            yield warning(name, wrong, f"{standing.name} --version")
        yield from _attached(view, name, version, standing, known[standing.name])


def _version(standing: Standing) -> tuple[str, str | None]:
    """In words, and what is wrong."""
    if standing.program is None:
        return f"no {standing.name} on the path", None
    try:
        asked = subprocess.run(
            [standing.program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return standing.program, f"{standing.program} does not tell its version: {reason_of(trouble)}"
    told = (asked.stdout.strip() or asked.stderr.strip()).partition("\n")[0]
    if asked.returncode != 0:
        return standing.program, f"{standing.program} --version ends with {asked.returncode}: {told}"
    return f"{told} at {standing.program}", None


def _attached(view: View, name: str, version: str, standing: Standing, client: Client) -> Iterator[Check]:
    said = [each for each in clients.diagnostics(view, standing) if each.severity != "info"]
    for each in said:
        make = failed if each.severity == "error" else warning
        yield make(name, f"{version}; {each.message}", *each.repair)
    notes = _notes(view, standing, client)
    for note in notes:
        yield warning(name, f"{version}; {note}")
    if not said and not notes:
        yield ok(name, f"{version}; {'is attached' if standing.is_attached else 'is not attached'}")


def _notes(view: View, standing: Standing, client: Client) -> list[str]:
    if not standing.is_attached or client.settings is None:
        return []
    told = attach.attach(
        view.home, client.settings, f"http://{view.config.gateway.listen}", view.environment, dry_run=True
    )
    return list(told.notes)
