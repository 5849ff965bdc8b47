"""Which of our sinks continues which sink of the original: the same name, or as the user says, and the same place.

Where a sink of the original delivered to is known from its config, if that lies with the cache; two spellings that come
to the same address are the same place. Everything else only the user can say: it is asked for, never guessed, because
one mistake sends every row twice, and the other loses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypaware.config import Config
from hypaware.errors import ConfigError, HypError, UsageError
from hypaware.export import configured
from hypaware.export.sinks.blob.address import place_of
from hypaware.export.sinks.forward import address as forward_address
from hypaware.home import Home
from hypaware.nearest import nearest
from hypaware.state.identity import Identity


@dataclass(frozen=True)
class Answers:
    """What the user said about sinks."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Theirs → ours."""
    same: frozenset[str] = frozenset()
    """Ours that deliver to where theirs did."""
    other: frozenset[str] = frozenset()
    """Ours that deliver elsewhere: they get all rows."""

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Answers:
        return cls(dict(args.get("sinks") or {}), frozenset(args.get("same") or ()), frozenset(args.get("other") or ()))

    def check(self, config: Config) -> None:
        if both := self.same & self.other:
            raise UsageError(f"the sink {min(both)} cannot deliver to the same destination and to another")
        for name in (*self.renamed.values(), *self.same, *self.other):
            if name not in config.sinks:
                known = nearest(name, list(config.sinks)) if config.sinks else " The config declares none."
                raise UsageError(f"there is no sink {name!r}.{known}", kind="unknown_sink", repair="hyp config show")


@dataclass(frozen=True)
class Continued:
    """What becomes of a sink of the original: `sink` goes on at `address`, or not, and why."""

    sink: str | None
    address: str | None = None
    why: str = ""


def continued(
    theirs: str, dataset: str, known: Mapping[str, str], answers: Answers, config: Config, ours: Addresses
) -> Continued:
    """Raises HypError where only the user can say."""
    name = answers.renamed.get(theirs, theirs)
    if name not in config.sinks:
        return Continued(None, why=f"the config has no sink {name}; if it goes on here, add --sink {theirs}=NAME")
    if dataset not in config.sinks[name].datasets:
        return Continued(name, why=f"the sink {name} does not deliver {dataset}")
    if name in answers.other:
        return Continued(name, why="you said that it delivers elsewhere: it gets all rows")
    address = ours.of(name)
    if name in answers.same:
        return Continued(name, address, "you said that it delivers to the same destination")
    if theirs in known and known[theirs] == address:
        return Continued(name, address, f"both deliver to {address}")
    was = f"to {known[theirs]}" if theirs in known else "to a place that nothing here names"
    raise HypError(
        f"the original's sink {theirs} delivered {was}, and the sink {name} delivers to {address}. If that is the same "
        f"destination, add --same-destination {name}, and what it has is not sent again; if not, add "
        f"--other-destination {name}, and it gets all rows. Nothing was changed",
        kind="destination_unclear",
    )


class Addresses:
    """Where our sinks deliver to, in one spelling; asks nobody."""

    def __init__(self, home: Home, config: Config, identity: Identity) -> None:
        self._home, self._config, self._identity = home, config, identity

    def of(self, sink: str) -> str:
        return configured.address(self._home, self._config, self._identity, sink)


def recorded(configs: Iterable[Path]) -> dict[str, str]:
    """Where the original's sinks deliver to, by their names, as its config files say; the first file counts."""
    found: dict[str, str] = {}
    for path in configs:
        try:
            sinks = json.loads(path.read_bytes())["sinks"]
            settings = {name: each["config"] for name, each in sinks.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        for name, values in settings.items():
            if isinstance(values, dict) and (address := _address(values)) is not None:
                found.setdefault(name, address)
    return found


def _address(settings: Mapping[str, Any]) -> str | None:
    """A server's `url`, a folder's `dir`, or a bucket; None for what ours has no name for."""
    try:
        if isinstance(url := settings.get("url"), str):
            return forward_address.normalised(url.rstrip("/").removesuffix("/v1"))
        if isinstance(folder := settings.get("dir"), str):
            return place_of({"destination": folder}).address
        if isinstance(bucket := settings.get("bucket"), str):
            prefix, endpoint = settings.get("prefix") or "", settings.get("endpoint_url") or ""
            return place_of({"destination": f"s3://{bucket}/{prefix}", "endpoint": endpoint}).address
    except (ConfigError, ValueError):
        return None
    return None
