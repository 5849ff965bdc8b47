"""Check each client: its version, and whether its attachment is in effect."""

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
    known = {client.name: client for client in plugins.load(plugins.CLIENTS, Client)}
    for client in clients.look(view).facts:
        name = f"client:{client.name}"
        if not client.installed:
            yield ok(name, "not installed")
            continue
        version, problem = _version(client)
        if problem:
            yield warning(name, problem, f"{client.name} --version")
        yield from _attachment_checks(view, name, version, client, known[client.name])


def _version(client: Standing) -> tuple[str, str | None]:
    """Return the client's version as text, and why it could not be read."""
    if client.program is None:
        return f"no {client.name} on the PATH", None
    try:
        done = subprocess.run(
            [client.program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return client.program, f"cannot read the version of {client.program}: {reason_of(error)}"
    output = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    if done.returncode != 0:
        return client.program, f"{client.program} --version failed with exit code {done.returncode}: {output}"
    return f"{output} at {client.program}", None


def _attachment_checks(view: View, name: str, version: str, client: Standing, plugin: Client) -> Iterator[Check]:
    problems = [each for each in clients.diagnostics(view, client) if each.severity != "info"]
    for each in problems:
        make = failed if each.severity == "error" else warning
        yield make(name, f"{version}; {each.message}", *each.repair)
    notes = _notes(view, client, plugin)
    for note in notes:
        yield warning(name, f"{version}; {note}")
    if not problems and not notes:
        yield ok(name, f"{version}; {'attached' if client.is_attached else 'not attached'}")


def _notes(view: View, client: Standing, plugin: Client) -> list[str]:
    if not client.is_attached or plugin.settings is None:
        return []
    plan = attach.attach(
        view.home, plugin.settings, f"http://{view.config.gateway.listen}", view.environment, dry_run=True
    )
    return list(plan.notes)
