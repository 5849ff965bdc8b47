"""The clients: installed, enabled, attached, seen; and for each that is not recorded, why not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypaware import plugins
from hypaware.clients import standing, undo
from hypaware.clients.attach import Settings
from hypaware.clients.client import Client
from hypaware.config import ClientConfig
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, info, reason_of, warning
from hypaware.status.view import View
from hypaware.status.within import within

_SECONDS = 1.5
_PASSES = "its requests reach the provider and are not recorded"


@dataclass(frozen=True)
class Standing:
    name: str
    program: str | None
    """Where its command is; it may be installed without one on our path."""
    has_settings: bool
    enabled: bool
    chosen: bool
    """Whether the config names it."""
    was_attached: bool = False
    """By the record of it, whatever its settings say now."""
    attached: standing.Standing | None = None
    trouble: str | None = None

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
        told = self.attached.as_json() if self.attached else {"client": self.name, "state": self.state}
        return {
            **told,
            "installed": self.installed,
            "program": self.program,
            "enabled": self.enabled,
            "problem": self.trouble or told.get("problem"),
        }


def look(view: View) -> Found[list[Standing]]:
    known = [each.settings for each in plugins.load(plugins.CLIENTS, Client) if each.settings]
    found = [_standing(view, settings) for settings in known]
    return Found(found, tuple(said for each in found for said in diagnostics(view, each)))


def _standing(view: View, settings: Settings) -> Standing:
    configured = view.config.clients.get(settings.name)
    attached, trouble, has_settings = None, None, False
    try:
        has_settings = settings.path(view.environment).parent.is_dir()
        attached = within(_SECONDS, lambda: standing.standing(view.home, settings, view.environment))
    except Exception as reason:
        trouble = f"how {settings.name} stands could not be told: {reason_of(reason)}"
    return Standing(
        name=settings.name,
        program=shutil.which(settings.name, path=view.environment.get("PATH", "")),
        has_settings=has_settings,
        enabled=(configured or ClientConfig()).enabled,
        chosen=configured is not None,
        was_attached=undo.read(view.home, settings.name) is not None,
        attached=attached,
        trouble=trouble,
    )


def diagnostics(view: View, client: Standing) -> Iterator[Diagnostic]:
    name, told = client.name, client.attached
    attach = f"hyp client attach {name}"
    if client.trouble:
        yield warning("client_unreadable", f"{name}: {client.trouble}", f"hyp client status {name}")
    elif told and told.problem:
        said = f"{name}: {told.problem}; mend the file, then attach the client"
        yield warning("client_unreadable", said, attach)
    if told is None or (told.state == "detached" and told.problem):
        return
    if client.is_attached and not client.enabled:
        enable = f"hyp config set clients.{name}.enabled true"
        yield warning("client_disabled", f"{name} is attached, and the config says not to record it", enable)
    if told.state == "broken":
        yield error(
            "client_unreachable",
            f"{name} calls {told.base_url}, where nobody of this home answers: it may not work at all",
            "hyp daemon start",
            f"hyp client detach {name}",
        )
    elif told.state == "passing":
        why = "the gateway does not listen" if view.runs else "the daemon does not run"
        yield warning(
            "client_unrecorded", f"{name}: {why}; {_PASSES}", "hyp daemon restart" if view.runs else "hyp daemon start"
        )
    elif told.state == "changed":
        yield warning("client_changed", f"{name}: its settings {told.path} were changed since it was attached", attach)
    elif told.state == "attached":
        since = f" since it was attached {words.ago(told.attached_at, view.now)}" if told.attached_at else ""
        yield info(
            "client_unseen",
            f"{name}: no request was seen{since}; sessions that ran before go on without the gateway: begin a new one",
        )
    elif told.state == "detached":
        yield from _why_not_attached(client, attach)


def _why_not_attached(client: Standing, attach: str) -> Iterator[Diagnostic]:
    if client.installed and client.enabled:
        yield info("client_not_attached", f"{client.name} is not attached: {_PASSES}, only imported later", attach)
    elif client.installed and client.chosen:
        enable = f"hyp config set clients.{client.name}.enabled true"
        yield info("client_off", f"{client.name} is not recorded, the config says so", enable, attach)
    elif client.enabled and client.chosen:
        yield info("client_not_installed", f"{client.name} is enabled in the config and not installed here")
