"""Validate what a provider yields: an item that can become rows, or an event.

A provider may yield the dataclasses of `provider`, or mappings of the same shape: items as `{dataset, kind, value,
provenance: {client_name, source_path, native_id}}`, events as `{event: name, …facts}`. Anything else fails the
provider instead of being skipped, because expected rows would be missing.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hypaware.backfill.materializer import InvalidItem, Materializer
from hypaware.backfill.provider import Event, Found, Item, Provenance, Provider
from hypaware.backfill.registry import Materializers
from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.model.columns import shown
from hypaware.model.datasets import Row

Fault = Literal["invalid_yield", "materializer_missing", "dataset_mismatch", "dataset_not_registered", "provider_error"]

# The number of sequences that can be reserved for one source.
_MAX_ROWS = 1 << 40
_EVENT = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ITEM_KEYS = frozenset({"dataset", "kind", "value", "provenance"})
_PROVENANCE_KEYS = frozenset({"client_name", "source_path", "native_id"})


class ProviderFault(HypError):
    """A provider broke its contract. It fails; the other providers continue."""

    def __init__(self, kind: Fault, message: str) -> None:
        super().__init__(message, kind=kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.message)


def checked(thing: Any, provider: Provider, materializers: Materializers) -> Item | Event:
    """Return an item or event of `read` as a dataclass; raise ProviderFault if it is invalid."""
    found = _in_one_form(thing)
    if isinstance(found, Item):
        _refuse_homeless(found, provider, materializers)
    return found


def checked_source(thing: Any) -> Found | Event:
    """Return a source or event of `find` as a dataclass; raise ProviderFault if it is invalid."""
    if isinstance(thing, Found):
        rows = thing.max_rows
        if not isinstance(thing.path, Path) or not (rows is None or (type(rows) is int and 0 <= rows <= _MAX_ROWS)):
            raise _invalid(f"`find` yielded {shown(thing)}, which is not a file")
        return thing
    found = _in_one_form(thing)
    if isinstance(found, Item):
        raise _invalid("`find` yielded an item; only `read` may yield items")
    return found


def rows_of(item: Item, materializer: Materializer, skipped: Counter[str]) -> Iterator[Row]:
    """Yield the rows of a validated item; raise ProviderFault if its materializer does not accept the value."""
    try:
        yield from materializer.materialize(item.value, item.provenance, skipped)
    except InvalidItem as reason:
        raise ProviderFault("invalid_yield", f"an item of kind {item.kind}: {reason}") from None


def _in_one_form(thing: Any) -> Item | Event:
    match thing:
        case Item():
            return _item(thing.dataset, thing.kind, thing.value, thing.provenance)
        case Event():
            return _event(thing.name, thing.facts)
        case Mapping() if not _ITEM_KEYS.isdisjoint(thing):
            _refuse_keys("an item", thing, _ITEM_KEYS)
            return _item(thing["dataset"], thing["kind"], thing["value"], thing["provenance"])
        case Mapping() if "event" in thing or "name" in thing:
            facts = dict(thing)
            name = facts.pop("event") if "event" in facts else facts.pop("name")
            return _event(name, facts["facts"] if facts.keys() == {"facts"} else facts)
        case _:
            raise _invalid(f"the provider yielded {shown(thing)}, which is neither an item nor an event")


def _item(dataset: Any, kind: Any, value: Any, provenance: Any) -> Item:
    return Item(_text("dataset", dataset), _text("kind", kind), value, _provenance(provenance))


def _provenance(given: Any) -> Provenance:
    if isinstance(given, Provenance):
        client, path, native = given.client_name, given.source_path, given.native_id
    elif isinstance(given, Mapping):
        _refuse_keys("the provenance of an item", given, _PROVENANCE_KEYS)
        client, path, native = given["client_name"], given["source_path"], given["native_id"]
    else:
        raise _invalid(f"the provenance of an item is {shown(given)}, not a Provenance")
    return Provenance(
        client_name=_text("client_name", client),
        source_path=_text("source_path", os.fspath(path) if isinstance(path, os.PathLike) else path),
        native_id=_text("native_id", native),
    )


def _event(name: Any, facts: Any) -> Event:
    if not isinstance(name, str) or not _EVENT.fullmatch(name):
        raise _invalid(f"an event name must consist of a-z, 0-9 and _, but this one is {shown(name)}")
    if not isinstance(facts, Mapping) or not all(isinstance(key, str) for key in facts):
        raise _invalid(f"the facts of the event {name} are {shown(facts)}, not a mapping with text keys")
    return Event(name, facts)


def _refuse_homeless(item: Item, provider: Provider, materializers: Materializers) -> None:
    if item.dataset not in provider.datasets:
        declared = ", ".join(provider.datasets)
        raise ProviderFault(
            "dataset_mismatch", f"the provider yielded an item for {shown(item.dataset)}, but declares only {declared}"
        )
    if item.dataset not in datasets.names():
        raise ProviderFault("dataset_not_registered", f"no dataset {item.dataset} is registered")
    materializer = materializers.get(item.kind)
    if materializer is None:
        raise ProviderFault("materializer_missing", _why_missing(item.kind, materializers))
    if materializer.dataset != item.dataset:
        raise ProviderFault(
            "dataset_mismatch",
            f"items of kind {item.kind} become rows of {materializer.dataset}, but this one is for {item.dataset}",
        )


def _why_missing(kind: str, materializers: Materializers) -> str:
    for plugin in materializers.broken:
        if plugin.name == kind:
            return f"the materializer for items of kind {kind}, from {plugin.distribution}, is broken: {plugin.error}"
    registered = ", ".join(materializers.kinds()) or "none"
    return f"there is no materializer for items of kind {shown(kind)}; registered: {registered}"


def _refuse_keys(what: str, given: Mapping[Any, Any], expected: frozenset[str]) -> None:
    if missing := sorted(expected - given.keys()):
        raise _invalid(f"{what} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in expected]:
        raise _invalid(f"{what} has the unknown key {shown(unknown[0])}")


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid(f"the {what} of an item is {shown(value)}, not text")
    return value


def _invalid(message: str) -> ProviderFault:
    return ProviderFault("invalid_yield", message)
