"""Plugins: what distributions register by entry points, the built-in parts among them.

A broken plugin never stops the others: it is left out of `load` and shown with its reason by `list_plugins`.
A name belongs to one plugin of its group; HypAware's own come first, then the distributions by name. A
plugin whose object has a `name` must be registered under it, so that nobody takes a name unseen.
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

# What a plugin of a group must be an instance of, "module:class".
_KINDS = {
    CLIENTS: "hypaware.clients.client:Client",
    DATASETS: "hypaware.model.datasets:Dataset",
    MATERIALIZERS: "hypaware.backfill.materializer:Materializer",
    SINKS: "hypaware.export.sink:SinkType",
    ENCODERS: "hypaware.export.encoders.encoder:Encoder",
}
# What judges the shape of such an instance and raises ValueError with the reason, "module:function".
_CHECKS = {
    CLIENTS: "hypaware.backfill.registry:check_client",
    MATERIALIZERS: "hypaware.backfill.registry:check_materializer",
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
    thing: Any
    error: str | None


def list_plugins() -> list[Plugin]:
    """Every registered plugin, loaded for a look; the broken ones too."""
    return [plugin for group in GROUPS for plugin, _ in inspect(group)]


def inspect(group: str) -> list[tuple[Plugin, Any]]:
    """Every plugin of a group and what it registered, which is None where it is broken."""
    return [(_describe(found), found.thing) for found in _load_group(group, _kind_of(group))]


def load(group: str, kind: type[T]) -> list[T]:
    """What works of a group, in a stable order."""
    return [found.thing for found in _load_group(group, kind) if found.error is None]


def names(group: str) -> tuple[str, ...]:
    """The registered names of a group; loads nothing."""
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
        thing = entry.load()
    except (Exception, SystemExit) as error:
        return _Loaded(entry, None, f"{type(error).__name__}: {error}".strip(": "))
    if not isinstance(thing, kind):
        return _Loaded(entry, None, f"{entry.value} is a {type(thing).__name__}, not a {kind.__name__}")
    if (own := getattr(thing, "name", entry.name)) != entry.name:
        return _Loaded(entry, None, f"{entry.value} calls itself {own!r}, but is registered as {entry.name!r}")
    if entry.group in _CHECKS:
        try:
            _named(_CHECKS[entry.group])(thing)
        except Exception as reason:
            return _Loaded(entry, None, f"{entry.value}: {reason}")
    return _Loaded(entry, thing, None)


def _describe(found: _Loaded) -> Plugin:
    entry = found.entry
    return Plugin(
        group=entry.group,
        name=entry.name,
        distribution=_distribution(entry),
        version=entry.dist.version if entry.dist else "",
        value=entry.value,
        status="broken" if found.error else "ok",
        error=found.error,
    )


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def _kind_of(group: str) -> type:
    if group not in _KINDS:
        return object
    kind = _named(_KINDS[group])
    assert isinstance(kind, type)
    return kind


def _named(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
