"""Which providers an import runs: the named ones, else those whose client is enabled in the config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypaware.backfill.registry import RESERVED, Providers, Registered
from hypaware.config import ClientConfig, Config
from hypaware.errors import HypError, UsageError
from hypaware.nearest import nearest


@dataclass(frozen=True)
class Selection:
    chosen: tuple[Registered, ...]
    why_none: str | None = None
    """What to tell the user when nothing was chosen."""


def select(providers: Providers, config: Config, names: Sequence[str] = ()) -> Selection:
    """Names override the config; an unknown or broken one is an error."""
    if names:
        return Selection(tuple(_named(providers, name) for name in dict.fromkeys(names)))
    chosen = tuple(each for each in providers if is_enabled(config, each.name))
    if chosen:
        return Selection(chosen)
    if not len(providers):
        return Selection((), "no provider is registered: no installed client keeps history that can be imported")
    known = [each.name for each in providers]
    return Selection(
        (),
        f"none of the registered providers is enabled in the config ({', '.join(known)}); "
        f"name one (hyp backfill {known[0]}) or enable it (hyp config set clients.{known[0]}.enabled true)",
    )


def is_enabled(config: Config, name: str) -> bool:
    return config.clients.get(name, ClientConfig()).enabled


def _named(providers: Providers, name: str) -> Registered:
    if found := providers.get(name):
        return found
    if name in RESERVED:
        raise UsageError(f"{name} is a command of hyp backfill: it comes first", repair=f"hyp backfill {name} --help")
    for plugin in providers.broken:
        if plugin.name == name:
            raise HypError(
                f"the client {name}, from {plugin.distribution}, is broken: {plugin.error}",
                kind="provider_broken",
                repair="hyp plugin list",
            )
    known = [each.name for each in providers]
    hint = nearest(name, known) or " None is registered."
    raise HypError(f"there is no provider {name!r}.{hint}", kind="unknown_provider", repair="hyp backfill list")
