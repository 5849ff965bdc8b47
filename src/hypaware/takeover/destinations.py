"""Matching sinks: which of our sinks continues which sink of the original.

A sink continues another if both have the same name, or the name that the user gives, and the same destination. The
destination of an original sink is known from its config, if that is found with the cache; two spellings of one address
are the same destination. If the destination is unknown, the user has to tell: a wrong guess would send every row twice
or lose rows.
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
    """The user's options about sinks."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Original name → our name."""
    same: frozenset[str] = frozenset()
    """Our sinks that deliver to the original's destination."""
    other: frozenset[str] = frozenset()
    """Our sinks that deliver elsewhere: they get all rows."""

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> Answers:
        return cls(dict(args.get("sinks") or {}), frozenset(args.get("same") or ()), frozenset(args.get("other") or ()))

    def check(self, config: Config) -> None:
        if both := self.same & self.other:
            raise UsageError(f"--same-destination and --other-destination both name the sink {min(both)}")
        for name in (*self.renamed.values(), *self.same, *self.other):
            if name not in config.sinks:
                known = nearest(name, list(config.sinks)) if config.sinks else " The config has no sinks."
                raise UsageError(f"there is no sink {name!r}.{known}", kind="unknown_sink", repair="hyp config show")


@dataclass(frozen=True)
class Continued:
    """The match of an original sink: `sink` continues at `address`, or does not, and the reason."""

    sink: str | None
    address: str | None = None
    reason: str = ""


def continued(
    original: str, dataset: str, known: Mapping[str, str], answers: Answers, config: Config, addresses: Addresses
) -> Continued:
    """Match a sink. Raise HypError if only the user can tell."""
    name = answers.renamed.get(original, original)
    if name not in config.sinks:
        return Continued(
            None, reason=f"the config has no sink {name}; to continue it under another name, add --sink {original}=NAME"
        )
    if dataset not in config.sinks[name].datasets:
        return Continued(name, reason=f"the sink {name} does not deliver {dataset}")
    if name in answers.other:
        return Continued(name, reason="--other-destination: it gets all rows")
    address = addresses.address_of(name)
    if name in answers.same:
        return Continued(name, address, "--same-destination")
    if original in known and known[original] == address:
        return Continued(name, address, f"both deliver to {address}")
    destination = f"to {known[original]}" if original in known else "to an unknown destination"
    raise HypError(
        f"the original's sink {original} delivered {destination}, and the sink {name} delivers to {address}. "
        f"If that is the same destination, add --same-destination {name}, and delivered rows are not sent again. "
        f"If not, add --other-destination {name}, and it gets all rows. Nothing was changed",
        kind="destination_unclear",
    )


class Addresses:
    """The normalised addresses of our sinks; nothing is contacted."""

    def __init__(self, home: Home, config: Config, identity: Identity) -> None:
        self._home, self._config, self._identity = home, config, identity

    def address_of(self, sink: str) -> str:
        return configured.address(self._home, self._config, self._identity, sink)


def recorded(configs: Iterable[Path]) -> dict[str, str]:
    """Return the original's destinations by sink name, from its config files; the first file counts."""
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
    """Return the address of a server `url`, a directory `dir` or a bucket; None for other destinations."""
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
