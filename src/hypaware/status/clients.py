"""The clients: installed, enabled, attached, seen, and why a client is not recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypaware import plugins, text
from hypaware.clients import attach
from hypaware.clients.attach import ClientSettings
from hypaware.clients.client import Client
from hypaware.config import ClientConfig
from hypaware.gateway import attach_status
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, call_with_timeout, error, info, warning
from hypaware.text import summarize_error

_UNRECORDED = "its requests reach the provider but are not recorded"


@dataclass(frozen=True)
class ClientStatus:
    name: str
    program: str | None
    """The path of its command; None if it is not on our PATH."""
    has_settings: bool
    enabled: bool
    chosen: bool
    """Whether the config names it."""
    was_attached: bool = False
    """Whether an attach record exists, whatever the client's settings say now."""
    attached: attach_status.AttachStatus | None = None
    error: str | None = None

    @property
    def installed(self) -> bool:
        return self.program is not None or self.has_settings

    @property
    def state(self) -> str:
        return self.attached.state if self.attached else "unknown"

    @property
    def is_attached(self) -> bool:
        return self.was_attached or self.state not in ("detached", "unknown")

    def as_json(self) -> dict[str, Any]:
        facts = self.attached.as_json() if self.attached else {"client": self.name, "state": self.state}
        return {
            **facts,
            "installed": self.installed,
            "program": self.program,
            "enabled": self.enabled,
            "problem": self.error or facts.get("problem"),
        }


def inspect_clients(inputs: StatusInput) -> PartStatus[list[ClientStatus]]:
    known = [each.settings for each in plugins.load_plugins(plugins.CLIENTS, Client) if each.settings]
    clients = [_client_status(inputs, settings) for settings in known]
    return PartStatus(clients, tuple(diagnostic for each in clients for diagnostic in client_diagnostics(inputs, each)))


def _client_status(inputs: StatusInput, settings: ClientSettings) -> ClientStatus:
    configured = inputs.config.clients.get(settings.name)
    attached, problem, has_settings = None, None, False
    try:
        has_settings = settings.path(inputs.environment).parent.is_dir()
        attached = call_with_timeout(lambda: attach_status.attach_status(inputs.home, settings, inputs.environment))
    except Exception as exception:
        problem = f"cannot determine whether {settings.name} is attached: {summarize_error(exception)}"
    return ClientStatus(
        name=settings.name,
        program=shutil.which(settings.name, path=inputs.environment.get("PATH", "")),
        has_settings=has_settings,
        enabled=(configured or ClientConfig()).enabled,
        chosen=configured is not None,
        was_attached=attach.read_record(inputs.home, settings.name) is not None,
        attached=attached,
        error=problem,
    )


def client_diagnostics(inputs: StatusInput, client: ClientStatus) -> Iterator[Diagnostic]:
    name, attachment = client.name, client.attached
    attach, enable = f"hyp client attach {name}", f"hyp config set clients.{name}.enabled true"
    if client.error:
        yield warning("client_unreadable", f"{name}: {client.error}", f"hyp client status {name}")
    elif attachment and attachment.problem:
        message = f"{name}: {attachment.problem}; repair the file, then attach the client"
        yield warning("client_unreadable", message, attach)
    if attachment is None or (attachment.state == "detached" and attachment.problem):
        return
    if client.is_attached and not client.enabled:
        yield warning("client_disabled", f"{name} is attached but disabled in the config", enable)
    if attachment.state == "broken":
        message = f"{name} calls {attachment.base_url}, but this home's gateway is not reachable there"
        commands = ("hyp daemon start", f"hyp client detach {name}")
        yield error("client_unreachable", f"{message}: {name} may not work", *commands)
    elif attachment.state == "passing":
        why = "the gateway is not listening" if inputs.is_daemon_running else "the daemon is not running"
        start = "hyp daemon restart" if inputs.is_daemon_running else "hyp daemon start"
        yield warning("client_unrecorded", f"{name}: {why}; {_UNRECORDED}", start)
    elif attachment.state == "changed":
        message = f"{name}: its settings file {attachment.path} has changed since it was attached"
        yield warning("client_changed", message, attach)
    elif attachment.state == "attached":
        at = attachment.attached_at
        since = f" since it was attached {text.format_ago(at, inputs.now)}" if at else ""
        message = f"{name}: no request was seen{since}; sessions that were already running do not use the gateway"
        yield info("client_unseen", f"{message}, so start a new one")
    elif attachment.state == "detached" and client.installed and client.enabled:
        yield info("client_not_attached", f"{name} is not attached: {_UNRECORDED}, only imported later", attach)
    elif attachment.state == "detached" and client.installed and client.chosen:
        yield info("client_off", f"{name} is not recorded because the config disables it", enable, attach)
    elif attachment.state == "detached" and client.enabled and client.chosen:
        yield info("client_not_installed", f"{name} is enabled in the config but not installed")
