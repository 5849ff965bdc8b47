"""Plugins: clients, sinks, encoders, datasets and materializers that distributions register as entry points.

The built-in ones are registered in the same way. A broken plugin never stops the others: `load` omits it, and
`list_plugins` shows it with the reason. Names are unique within a group. HypAware's own plugins come first, then those
of other distributions in alphabetical order. A plugin object with a `name` attribute must be registered under that
name, so that no plugin can hide another one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

CLIENTS = "hypaware.clients"
SINKS = "hypaware.sinks"
ENCODERS = "hypaware.encoders"
DATASETS = "hypaware.datasets"
MATERIALIZERS = "hypaware.materializers"
GROUPS = (CLIENTS, SINKS, ENCODERS, DATASETS, MATERIALIZERS)
# The class that the plugins of a group are instances of, as "module:class".
_KINDS = {
    CLIENTS: "hypaware.clients.client:Client",
    DATASETS: "hypaware.model.datasets:Dataset",
    MATERIALIZERS: "hypaware.clients.client:Materializer",
    SINKS: "hypaware.export.sink:SinkType",
    ENCODERS: "hypaware.export.encoders:Encoder",
}
# The function that validates an instance and raises ValueError with the reason, as "module:function".
_CHECKS = {
    CLIENTS: "hypaware.backfill.providers:check_client",
    MATERIALIZERS: "hypaware.backfill.providers:check_materializer",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    group: str
    name: str
    distribution: str
    version: str
    value: str
    status: str
    """`ok`, or `broken` with the reason in `error`."""
    error: str | None = None


def list_plugins() -> list[Plugin]:
    """Load and describe every registered plugin, including the broken ones."""
    return [plugin for group in GROUPS for plugin, _ in inspect_group(group)]


def inspect_group(group: str) -> list[tuple[Plugin, Any]]:
    """Return every plugin of a group with its object, which is None if the plugin is broken."""
    return list(_load_group(group, _import(_KINDS[group]) if group in _KINDS else object))


def load_plugins(group: str, kind: type[T]) -> list[T]:
    """Return the objects of the working plugins of a group, in a stable order."""
    return [value for plugin, value in _load_group(group, kind) if plugin.error is None]


def load_declarations(group: str, kind: type[T]) -> list[T]:
    """Return the objects of a group unchecked: their parts are not imported, so this costs little."""
    return [value for plugin, value in _load_group(group, kind, is_checked=False) if plugin.error is None]


def find_plugin(group: str, name: str, kind: type[T]) -> T | None:
    """Return one working plugin without loading the others; None if there is none of this name."""
    return _find(group, name, kind, is_checked=True)


def find_declaration(group: str, name: str, kind: type[T]) -> T | None:
    """Return the object of one plugin unchecked; None if there is none of this name."""
    return _find(group, name, kind, is_checked=False)


def _find(group: str, name: str, kind: type[T], *, is_checked: bool) -> T | None:
    entry = next((each for each in _entries(group) if each.name == name), None)
    value, error = (None, None) if entry is None else _load(entry, kind, is_checked=is_checked)
    return None if error else value


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the registered names of a group without loading the plugins."""
    return tuple(dict.fromkeys(entry.name for entry in _entries(group)))


def _entries(group: str) -> list[EntryPoint]:
    return sorted(
        entry_points(group=group),
        key=lambda entry: (_distribution(entry) != "hypaware", _distribution(entry), entry.name),
    )


def _load_group(group: str, kind: type, *, is_checked: bool = True) -> Iterator[tuple[Plugin, Any]]:
    owners: dict[str, str] = {}
    for entry in _entries(group):
        value, error = None, None
        if owner := owners.get(entry.name):
            error = f"the name {entry.name} belongs to {owner}"
        else:
            owners[entry.name] = _distribution(entry)
            value, error = _load(entry, kind, is_checked=is_checked)
        plugin = Plugin(
            group=entry.group,
            name=entry.name,
            distribution=_distribution(entry),
            version=entry.dist.version if entry.dist else "",
            value=entry.value,
            status="broken" if error else "ok",
            error=error,
        )
        yield plugin, value


def _load(entry: EntryPoint, kind: type, *, is_checked: bool) -> tuple[Any, str | None]:
    """Return the plugin's object, or None and the reason why it is broken."""
    try:
        value = entry.load()
    except (Exception, SystemExit) as error:
        return None, f"{type(error).__name__}: {error}".strip(": ")
    if not isinstance(value, kind):
        return None, f"{entry.value} is a {type(value).__name__}, not a {kind.__name__}"
    if (own_name := getattr(value, "name", entry.name)) != entry.name:
        return None, f"{entry.value} has the name {own_name!r}, but is registered as {entry.name!r}"
    if is_checked and entry.group in _CHECKS:
        try:
            _import(_CHECKS[entry.group])(value)
        except Exception as reason:
            return None, f"{entry.value}: {reason}"
    return value, None


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
