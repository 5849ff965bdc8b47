"""Choose the providers of an import: the named ones, or those whose client is enabled in the config."""

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
    """The message for the user if no provider was chosen."""


def select(providers: Providers, config: Config, names: Sequence[str] = ()) -> Selection:
    """Return the named providers, or the enabled ones without names; raise HypError for an unknown or broken name."""
    if names:
        return Selection(tuple(_named(providers, name) for name in dict.fromkeys(names)))
    chosen = tuple(each for each in providers if is_enabled(config, each.name))
    if chosen:
        return Selection(chosen)
    if not len(providers):
        return Selection((), "no provider is registered, so there is no history to import")
    known = [each.name for each in providers]
    return Selection(
        (),
        f"no provider is enabled in the config (registered: {', '.join(known)}). "
        f"Name one (hyp backfill {known[0]}) or enable it (hyp config set clients.{known[0]}.enabled true)",
    )


def is_enabled(config: Config, name: str) -> bool:
    return config.clients.get(name, ClientConfig()).enabled


def _named(providers: Providers, name: str) -> Registered:
    if found := providers.get(name):
        return found
    if name in RESERVED:
        raise UsageError(f"{name} is a subcommand of hyp backfill; put it first", repair=f"hyp backfill {name} --help")
    for plugin in providers.broken:
        if plugin.name == name:
            raise HypError(
                f"the client {name}, from {plugin.distribution}, is broken: {plugin.error}",
                kind="provider_broken",
                repair="hyp plugin list",
            )
    known = [each.name for each in providers]
    hint = nearest(name, known) or " No provider is registered."
    raise HypError(f"unknown provider {name!r}.{hint}", kind="unknown_provider", repair="hyp backfill list")
