"""The clients: installed, enabled, attached, seen, and why one is not recorded; and the JavaScript original."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypaware import plugins, text
from hypaware.clients import attach, original_install
from hypaware.clients.client import Client, Source, WatchableProvider
from hypaware.config import ClientConfig
from hypaware.gateway import attach_status
from hypaware.gateway.handover import find_free_address
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, call_with_timeout, error, info, warning
from hypaware.text import summarize_error

_UNRECORDED = "its requests reach the provider but are not recorded"


@dataclass(frozen=True)
class ClientStatus:
    name: str
    program: str | None
    """The path of its command; None if it is not on our PATH."""
    has_settings: bool
    """Whether the folder of its settings or of its history exists."""
    enabled: bool
    chosen: bool
    """Whether the config names it."""
    was_attached: bool = False
    """Whether an attach record exists, whatever the client's settings say now."""
    attached: attach_status.AttachStatus | None = None
    follow: Mapping[str, Any] | None = None
    """What the daemon says of its transcripts; None if it does not follow them."""
    error: str | None = None
    can_attach: bool = True
    """False for a client that is recorded from its history alone."""

    @property
    def installed(self) -> bool:
        return self.program is not None or self.has_settings

    @property
    def state(self) -> str:
        return self.attached.state if self.attached else "unknown" if self.can_attach else "detached"

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
            "follow": dict(self.follow) if self.follow else None,
            "problem": self.error or facts.get("problem"),
        }


def inspect_clients(inputs: StatusInput) -> PartStatus[list[ClientStatus]]:
    known = [_client_status(inputs, client) for client in plugins.load_plugins(plugins.CLIENTS, Client)]
    clients = [each for each in known if each.can_attach or each.installed or each.chosen]
    return PartStatus(clients, tuple(diagnostic for each in clients for diagnostic in client_diagnostics(inputs, each)))


def _client_status(inputs: StatusInput, client: Client) -> ClientStatus:
    settings = client.settings
    name = client.name if settings is None else settings.name
    configured = inputs.config.clients.get(name)
    attached, problem, has_files = None, None, False
    try:
        if settings is not None:
            has_files = settings.path(inputs.environment).parent.is_dir()
            attached = call_with_timeout(lambda: attach_status.attach_status(inputs.home, settings, inputs.environment))
        else:
            has_files = _has_history(inputs, client)
    except Exception as exception:
        unknown = "find its history" if settings is None else f"determine whether {name} is attached"
        problem = f"cannot {unknown}: {summarize_error(exception)}"
    return ClientStatus(
        name=name,
        program=shutil.which(name, path=inputs.environment.get("PATH", "")),
        has_settings=has_files,
        enabled=(configured or ClientConfig()).enabled,
        chosen=configured is not None,
        was_attached=settings is not None and attach.read_record(inputs.home, name) is not None,
        attached=attached,
        follow=_follow_status(inputs, name),
        error=problem,
        can_attach=settings is not None,
    )


def _has_history(inputs: StatusInput, client: Client) -> bool:
    if isinstance(client.backfill, WatchableProvider):
        return any(folder.is_dir() for folder in client.backfill.folders(inputs.environment))
    found = client.backfill.find(inputs.environment) if client.backfill is not None else ()
    return any(isinstance(each, Source) for each in found)


def inspect_original(inputs: StatusInput) -> PartStatus[None]:
    """Report an installation of the JavaScript original, each part of it with the command that replaces it."""
    known = [each.settings for each in plugins.load_plugins(plugins.CLIENTS, Client) if each.settings]
    paths = {each.name: each.path(inputs.environment) for each in known if each.name in original_install.CLIENTS}
    found = original_install.find_original(inputs.home.root, inputs.environment, paths)
    findings = original_install.list_findings(
        found,
        inputs.environment,
        is_imported=any(each["provider"] == original_install.IMPORT_PROVIDER for each in inputs.state.history),
        listen=inputs.config.gateway.listen,
        find_free_address=find_free_address,
    )
    return PartStatus(
        None, tuple((warning if each.urgent else info)(each.kind, each.message, each.repair) for each in findings)
    )


def _follow_status(inputs: StatusInput, client: str) -> Mapping[str, Any] | None:
    clients = inputs.daemon_part("follow").get("clients") if inputs.is_daemon_running else None
    found = clients.get(client) if isinstance(clients, Mapping) else None
    return found if isinstance(found, Mapping) else None


def follow_diagnostics(inputs: StatusInput, client: ClientStatus) -> Iterator[Diagnostic]:
    """Yield why the transcripts of a client are not recorded as they grow, or not as usual."""
    name, follow = client.name, client.follow
    if follow is None:
        error_message = inputs.daemon_part("follow").get("error")
        if inputs.is_daemon_running and client.enabled and client.chosen and error_message:
            yield warning("follow_failing", f"{name}: its transcripts are not followed: {error_message}", "hyp doctor")
        return
    if follow.get("state") == "failing":
        message = f"{name}: its transcripts cannot be recorded: {follow.get('error')}"
        yield warning("follow_failing", f"{message}; they are tried again, and imported later", "hyp doctor")
    elif follow.get("state") == "folder_missing" and client.installed:
        folders = ", ".join(map(str, follow.get("folders") or ()))
        yield info("follow_folder_missing", f"{name}: it has written no transcript yet ({folders} does not exist)")
    elif follow.get("polling_reason"):
        message = f"{name}: its transcripts are looked at every second or two: {follow['polling_reason']}"
        yield info("follow_polling", message)


def client_diagnostics(inputs: StatusInput, client: ClientStatus) -> Iterator[Diagnostic]:
    yield from follow_diagnostics(inputs, client)
    name, attachment = client.name, client.attached
    attach, enable = f"hyp client attach {name}", f"hyp config set clients.{name}.enabled true"
    if client.error:
        yield warning("client_unreadable", f"{name}: {client.error}", f"hyp client status {name}")
    elif attachment and attachment.problem:
        message = f"{name}: {attachment.problem}; repair the file, then attach the client"
        yield warning("client_unreadable", message, attach)
    if (attachment is None and client.can_attach) or (attachment and attachment.problem and client.state == "detached"):
        return
    if client.is_attached and not client.enabled:
        yield warning("client_disabled", f"{name} is attached but disabled in the config", enable)
    if attachment and client.state == "broken":
        message = f"{name} calls {attachment.base_url}, but this home's gateway is not reachable there"
        commands = ("hyp daemon start", f"hyp client detach {name}")
        yield error("client_unreachable", f"{message}: {name} may not work", *commands)
    elif attachment and client.state == "passing" and not attachment.calls(listen := inputs.config.gateway.listen):
        why = f"it calls {attachment.base_url}, but gateway.listen is {listen}"
        yield warning("client_unrecorded", f"{name}: {why}; {_UNRECORDED}", attach)
    elif client.state == "passing":
        why = "the gateway is not listening" if inputs.is_daemon_running else "the daemon is not running"
        start = "hyp daemon restart" if inputs.is_daemon_running else "hyp daemon start"
        yield warning("client_unrecorded", f"{name}: {why}; {_UNRECORDED}", start)
    elif attachment and client.state == "changed":
        message = f"{name}: its settings file {attachment.path} has changed since it was attached"
        yield warning("client_changed", message, attach)
    elif attachment and client.state == "attached":
        at = attachment.attached_at
        since = f" since it was attached {text.format_ago(at, inputs.now)}" if at else ""
        message = f"{name}: no request was seen{since}; sessions that were already running do not use the gateway"
        yield info("client_unseen", f"{message}, so start a new one")
    elif client.state == "detached" and client.installed and client.enabled and not client.chosen:
        message = f"{name} is installed but not recorded, because the config does not name it"
        yield info("client_not_chosen", message, enable)
    elif client.state == "detached" and client.installed and not client.enabled:
        yield info("client_off", f"{name} is not recorded because the config disables it", enable)
    elif client.state == "detached" and not client.installed and client.enabled and client.chosen:
        yield info("client_not_installed", f"{name} is enabled in the config but not installed")
