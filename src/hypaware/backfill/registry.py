"""The registries of providers (by name) and materializers (by kind), each with the plugin that brought it.

Objects are checked when they register, so that an import never meets one without a name or a method. A name has one
owner. Installed objects are found by entry points: clients with a `backfill` in the group `hypaware.clients`,
materializers in `hypaware.materializers`. A broken plugin is listed in `broken` and does not stop the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypaware import plugins
from hypaware.backfill.materializer import Materializer
from hypaware.backfill.provider import Provider
from hypaware.plugins import Plugin

_PROVIDER = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_DATASET = re.compile(r"[a-z][a-z0-9_]{0,62}")
_KIND = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# `hyp backfill list` and `hyp backfill plan` are commands.
RESERVED = ("list", "plan")


@dataclass(frozen=True)
class Registered:
    """A provider and the distribution that registered it."""

    provider: Provider
    plugin: str

    @property
    def name(self) -> str:
        return self.provider.name


class Providers:
    """Providers by name, in the order in which they registered."""

    def __init__(self) -> None:
        self._by_name: dict[str, Registered] = {}
        self.broken: list[Plugin] = []

    def register(self, provider: Provider, plugin: str) -> None:
        check_provider(provider)
        if owner := self._by_name.get(provider.name):
            raise ValueError(f"the provider {provider.name} is already registered by {owner.plugin}")
        self._by_name[provider.name] = Registered(provider, plugin)

    def get(self, name: str) -> Registered | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class Materializers:
    """Materializers by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, tuple[Materializer, str]] = {}
        self.broken: list[Plugin] = []

    def register(self, materializer: Materializer, plugin: str) -> None:
        check_materializer(materializer)
        if owner := self._by_kind.get(materializer.name):
            raise ValueError(f"the materializer {materializer.name} is already registered by {owner[1]}")
        self._by_kind[materializer.name] = materializer, plugin

    def get(self, kind: str) -> Materializer | None:
        found = self._by_kind.get(kind)
        return found[0] if found else None

    def kinds(self) -> tuple[str, ...]:
        return tuple(self._by_kind)


def providers() -> Providers:
    """Return the providers of the installed clients, HypAware's own first."""
    found = Providers()
    for plugin, client in plugins.inspect(plugins.CLIENTS):
        if plugin.error is not None:
            found.broken.append(plugin)
        elif client.backfill is not None:
            found.register(client.backfill, plugin.distribution)
    return found


def materializers() -> Materializers:
    found = Materializers()
    for plugin, materializer in plugins.inspect(plugins.MATERIALIZERS):
        if plugin.error is not None:
            found.broken.append(plugin)
        else:
            found.register(materializer, plugin.distribution)
    return found


def check_client(client: Any) -> None:
    """Raise ValueError unless the client's provider, if it has one, can be registered under the client's name."""
    if client.backfill is None:
        return
    check_provider(client.backfill)
    if client.backfill.name != client.name:
        raise ValueError(f"the provider of the client {client.name!r} has the name {client.backfill.name!r}")


def check_provider(provider: Any) -> None:
    name = getattr(provider, "name", None)
    if not _matches(_PROVIDER, name):
        raise ValueError(f"a provider name must consist of a-z, 0-9, _ and -, but this one is {name!r}")
    if name in RESERVED:
        raise ValueError(f"a provider cannot be named {name}: that is a command of `hyp backfill`")
    what = f"the provider {name}"
    summary = getattr(provider, "summary", None)
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary:
        raise ValueError(f"{what}: summary must be one line of text, but is {summary!r}")
    _check_names(f"{what}: datasets", getattr(provider, "datasets", None), _DATASET)
    if not getattr(provider, "datasets", None):
        raise ValueError(f"{what}: datasets is empty")
    _check_names(f"{what}: environment", getattr(provider, "environment", None), _VARIABLE)
    for method in ("find", "first_time", "read"):
        if not callable(getattr(provider, method, None)):
            raise ValueError(f"{what} has no function {method}")


def check_materializer(materializer: Any) -> None:
    if not _matches(_KIND, name := materializer.name):
        raise ValueError(f"a materializer name must consist of a-z, 0-9, _ and dots, but this one is {name!r}")
    if not _matches(_DATASET, materializer.dataset):
        raise ValueError(f"the materializer {name}: {materializer.dataset!r} is not a valid dataset name")
    if not callable(materializer.materialize):
        raise ValueError(f"the materializer {name}: materialize is not a function")
    if materializer.tally is not None and not callable(materializer.tally):
        raise ValueError(f"the materializer {name}: tally is neither a function nor None")


def _check_names(what: str, names: Any, allowed: re.Pattern[str]) -> None:
    if not isinstance(names, tuple):
        raise ValueError(f"{what} must be a tuple of names, but is {names!r}")
    for name in names:
        if not _matches(allowed, name):
            raise ValueError(f"{what}: {name!r} is not a valid name")
    if len(set(names)) < len(names):
        raise ValueError(f"{what}: duplicate name")


def _matches(pattern: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None
