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


@dataclass(frozen=True)
class _Loaded:
    entry: EntryPoint
    value: Any
    error: str | None


def list_plugins() -> list[Plugin]:
    """Load and describe every registered plugin, including the broken ones."""
    return [plugin for group in GROUPS for plugin, _ in inspect_group(group)]


def inspect_group(group: str) -> list[tuple[Plugin, Any]]:
    """Return every plugin of a group with its object, which is None if the plugin is broken."""
    return [(_describe(loaded), loaded.value) for loaded in _load_group(group, _kind_of(group))]


def load_plugins(group: str, kind: type[T]) -> list[T]:
    """Return the objects of the working plugins of a group, in a stable order."""
    return [loaded.value for loaded in _load_group(group, kind) if loaded.error is None]


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the registered names of a group without loading the plugins."""
    return tuple(dict.fromkeys(entry.name for entry in _entries(group)))


def _entries(group: str) -> list[EntryPoint]:
    return sorted(
        entry_points(group=group),
        key=lambda entry: (_distribution(entry) != "hypaware", _distribution(entry), entry.name),
    )


def _load_group(group: str, kind: type) -> Iterator[_Loaded]:
    owners: dict[str, str] = {}
    for entry in _entries(group):
        if owner := owners.get(entry.name):
            yield _Loaded(entry, None, f"the name {entry.name} belongs to {owner}")
            continue
        owners[entry.name] = _distribution(entry)
        yield _load(entry, kind)


def _load(entry: EntryPoint, kind: type) -> _Loaded:
    try:
        value = entry.load()
    except (Exception, SystemExit) as error:
        return _Loaded(entry, None, f"{type(error).__name__}: {error}".strip(": "))
    if not isinstance(value, kind):
        return _Loaded(entry, None, f"{entry.value} is a {type(value).__name__}, not a {kind.__name__}")
    if (own_name := getattr(value, "name", entry.name)) != entry.name:
        return _Loaded(entry, None, f"{entry.value} has the name {own_name!r}, but is registered as {entry.name!r}")
    if entry.group in _CHECKS:
        try:
            _import(_CHECKS[entry.group])(value)
        except Exception as reason:
            return _Loaded(entry, None, f"{entry.value}: {reason}")
    return _Loaded(entry, value, None)


def _describe(loaded: _Loaded) -> Plugin:
    entry = loaded.entry
    return Plugin(
        group=entry.group,
        name=entry.name,
        distribution=_distribution(entry),
        version=entry.dist.version if entry.dist else "",
        value=entry.value,
        status="broken" if loaded.error else "ok",
        error=loaded.error,
    )


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def _kind_of(group: str) -> type:
    if group not in _KINDS:
        return object
    kind = _import(_KINDS[group])
    assert isinstance(kind, type)
    return kind


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
