"""The registries of providers and materializers, and the validation of what providers yield.

Objects are checked when they register. A name has one owner. Installed objects are found by entry points: clients with
a `backfill` in the group `hypaware.clients`, materializers in `hypaware.materializers`. A broken plugin is listed in
`broken` and does not stop the others.

A provider may yield the dataclasses of `clients.client`, or mappings of the same shape: items as `{dataset, kind,
value, provenance: {client_name, source_path, native_id}}`, events as `{event: name, …facts}`. Anything else fails the
provider instead of being skipped, because expected rows would be missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hypaware import plugins
from hypaware.clients.client import (
    Environment,
    ImportItem,
    Materializer,
    Provenance,
    Provider,
    ProviderEvent,
    Source,
)
from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.model.columns import preview
from hypaware.plugins import Plugin

_PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_DATASET_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ITEM_KIND = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `hyp backfill list` and `hyp backfill plan` are commands.
RESERVED = ("list", "plan")
FaultKind = Literal[
    "invalid_yield", "materializer_missing", "dataset_mismatch", "dataset_not_registered", "provider_error"
]
# The number of sequences that can be reserved for one source.
_MAX_ROWS = 1 << 40
_EVENT_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ITEM_KEYS = frozenset({"dataset", "kind", "value", "provenance"})
_PROVENANCE_KEYS = frozenset({"client_name", "source_path", "native_id"})


@dataclass(frozen=True)
class RegisteredProvider:
    provider: Provider
    plugin: str

    @property
    def name(self) -> str:
        return self.provider.name


class ProviderRegistry:
    """Providers by name, in the order in which they registered."""

    def __init__(self) -> None:
        self._by_name: dict[str, RegisteredProvider] = {}
        self.broken: list[Plugin] = []

    def register(self, provider: Provider, plugin: str) -> None:
        check_provider(provider)
        if owner := self._by_name.get(provider.name):
            raise ValueError(f"the provider {provider.name} is already registered by {owner.plugin}")
        self._by_name[provider.name] = RegisteredProvider(provider, plugin)

    def get(self, name: str) -> RegisteredProvider | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[RegisteredProvider]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class MaterializerRegistry:
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


def load_providers() -> ProviderRegistry:
    """Return the providers of the installed clients, HypAware's own first."""
    found = ProviderRegistry()
    for plugin, client in plugins.inspect_group(plugins.CLIENTS):
        if plugin.error is not None:
            found.broken.append(plugin)
        elif client.backfill is not None:
            found.register(client.backfill, plugin.distribution)
    return found


def load_materializers() -> MaterializerRegistry:
    found = MaterializerRegistry()
    for plugin, materializer in plugins.inspect_group(plugins.MATERIALIZERS):
        if plugin.error is not None:
            found.broken.append(plugin)
        else:
            found.register(materializer, plugin.distribution)
    return found


def check_client(client: Any) -> None:
    """Raise unless every part that the client names can be imported, and its provider has the name of the client."""
    if client.settings is not None and client.traffic is None:
        raise ValueError(f"the client {client.name!r} can be attached, but does not declare its traffic")
    # Reading a part imports it.
    for part, member in ((client.requests, "find_session"), (client.mcp, "__call__"), (client.transcripts, "restore")):
        if part is not None and not callable(getattr(part, member, None)):
            raise ValueError(f"a part of the client {client.name!r} is {preview(part)}, which has no {member}")
    if client.backfill is None:
        return
    check_provider(client.backfill)
    if client.backfill.name != client.name:
        raise ValueError(f"the provider of the client {client.name!r} has the name {client.backfill.name!r}")


def check_provider(provider: Any) -> None:
    name = getattr(provider, "name", None)
    if not _matches(_PROVIDER_NAME, name):
        raise ValueError(f"a provider name must consist of a-z, 0-9, _ and -, but this one is {name!r}")
    if name in RESERVED:
        raise ValueError(f"a provider cannot be named {name}: that is a command of `hyp backfill`")
    what = f"the provider {name}"
    summary = getattr(provider, "summary", None)
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary:
        raise ValueError(f"{what}: summary must be one line of text, but is {summary!r}")
    _check_names(f"{what}: datasets", getattr(provider, "datasets", None), _DATASET_NAME)
    if not getattr(provider, "datasets", None):
        raise ValueError(f"{what}: datasets is empty")
    _check_names(f"{what}: environment", getattr(provider, "environment", None), _VARIABLE)
    for method in ("find", "first_time", "read"):
        if not callable(getattr(provider, method, None)):
            raise ValueError(f"{what} has no function {method}")


def check_materializer(materializer: Any) -> None:
    if not _matches(_ITEM_KIND, name := materializer.name):
        raise ValueError(f"a materializer name must consist of a-z, 0-9, _ and dots, but this one is {name!r}")
    if not _matches(_DATASET_NAME, materializer.dataset):
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


class ProviderFault(HypError):
    """A provider broke its contract. It fails; the other providers continue."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message, kind=kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.message)


def find_sources(provider: Provider, environment: Environment) -> Iterator[Source | ProviderEvent]:
    """Yield the sources and events of `find`; raise ProviderFault if it fails or yields anything else."""
    try:
        for raw in provider.find(environment):
            found = _from_mapping(raw) if isinstance(raw, Mapping) else raw
            match found:
                case Source(Path(), rows) if rows is None or (type(rows) is int and 0 <= rows <= _MAX_ROWS):
                    yield found
                case ProviderEvent():
                    yield _check_event(found)
                case ImportItem():
                    raise _invalid_yield("`find` yielded an item; only `read` may yield items")
                case _:
                    raise _invalid_yield(f"`find` yielded {preview(raw)}, which is neither a file nor an event")
    except ProviderFault:
        raise
    except Exception as error:
        raise ProviderFault(
            "provider_error", f"searching for sources failed: {type(error).__name__}: {error}"
        ) from error


def validate_yield(raw: Any, provider: Provider, materializers: MaterializerRegistry) -> ImportItem | ProviderEvent:
    """Return an item or event of `read` as a dataclass; raise ProviderFault if it is invalid."""
    found = _from_mapping(raw) if isinstance(raw, Mapping) else raw
    if isinstance(found, ProviderEvent):
        return _check_event(found)
    if not isinstance(found, ImportItem):
        raise _invalid_yield(f"the provider yielded {preview(raw)}, which is neither an item nor an event")
    dataset, kind = _require_text("dataset", found.dataset), _require_text("kind", found.kind)
    provenance = _make_provenance(found.provenance)
    if dataset not in provider.datasets:
        declared = ", ".join(provider.datasets)
        raise ProviderFault(
            "dataset_mismatch", f"the provider yielded an item for {preview(dataset)}, but declares only {declared}"
        )
    if dataset not in datasets.list_names():
        raise ProviderFault("dataset_not_registered", f"no dataset {dataset} is registered")
    materializer = materializers.get(kind)
    if materializer is None:
        registered = ", ".join(materializers.kinds()) or "none"
        message = f"there is no materializer for items of kind {preview(kind)}; registered: {registered}"
        for plugin in materializers.broken:
            if plugin.name == kind:
                message = f"cannot load the materializer for items of kind {kind} from {plugin.distribution}: "
                message += str(plugin.error)
        raise ProviderFault("materializer_missing", message)
    if materializer.dataset != dataset:
        raise ProviderFault(
            "dataset_mismatch",
            f"items of kind {kind} become rows of {materializer.dataset}, but this one is for {dataset}",
        )
    return ImportItem(dataset, kind, found.value, provenance)


def _from_mapping(raw: Mapping[Any, Any]) -> ImportItem | ProviderEvent | Mapping[Any, Any]:
    """Return the item or event that a mapping describes, unchecked, or the mapping if it describes neither."""
    if not _ITEM_KEYS.isdisjoint(raw):
        _check_keys("an item", raw, _ITEM_KEYS)
        return ImportItem(raw["dataset"], raw["kind"], raw["value"], raw["provenance"])
    if "event" in raw or "name" in raw:
        rest = dict(raw)
        name = rest.pop("event") if "event" in rest else rest.pop("name")
        return ProviderEvent(name, rest["facts"] if rest.keys() == {"facts"} else rest)
    return raw


def _check_event(found: ProviderEvent) -> ProviderEvent:
    name, facts = found.name, found.facts
    if not _matches(_EVENT_NAME, name):
        raise _invalid_yield(f"an event name must consist of a-z, 0-9 and _, but this one is {preview(name)}")
    if not isinstance(facts, Mapping) or not all(isinstance(key, str) for key in facts):
        raise _invalid_yield(f"the facts of the event {name} are {preview(facts)}, not a mapping with text keys")
    return found


def _make_provenance(given: Any) -> Provenance:
    if isinstance(given, Mapping):
        _check_keys("the provenance of an item", given, _PROVENANCE_KEYS)
        given = Provenance(**given)
    elif not isinstance(given, Provenance):
        raise _invalid_yield(f"the provenance of an item is {preview(given)}, not a Provenance")
    path = given.source_path
    return Provenance(
        client_name=_require_text("client_name", given.client_name),
        source_path=_require_text("source_path", os.fspath(path) if isinstance(path, os.PathLike) else path),
        native_id=_require_text("native_id", given.native_id),
    )


def _check_keys(what: str, given: Mapping[Any, Any], expected: frozenset[str]) -> None:
    if missing := sorted(expected - given.keys()):
        raise _invalid_yield(f"{what} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in expected]:
        raise _invalid_yield(f"{what} has the unknown key {preview(unknown[0])}")


def _require_text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid_yield(f"the {what} of an item is {preview(value)}, not text")
    return value


def _invalid_yield(message: str) -> ProviderFault:
    return ProviderFault("invalid_yield", message)
