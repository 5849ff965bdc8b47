"""The configured sinks, their kinds, and the address that the config gives each of them.

Uses no network and imports nothing heavy: whether a round has anything to do is decided with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from hypaware import plugins
from hypaware.config import Config
from hypaware.errors import HypError
from hypaware.export.sink import OnSpark, SinkSettings, SinkType
from hypaware.home import Home
from hypaware.nearest import nearest
from hypaware.state.identity import Identity


def chosen(config: Config, names: Iterable[str]) -> list[str]:
    """Return the named sinks, each once, or all sinks if no name is given. Raises HypError for an unknown name."""
    selected = list(dict.fromkeys(names)) or list(config.sinks)
    for name in selected:
        if name not in config.sinks:
            hint = nearest(name, list(config.sinks)) if config.sinks else " The config has no sinks."
            raise HypError(f"unknown sink {name!r}.{hint}", kind="unknown_sink", repair="hyp config show")
    return selected


def settings(
    home: Home, config: Config, identity: Identity, sink: str, on_spark: OnSpark | None = None
) -> SinkSettings:
    sink_config = config.sinks[sink]
    return SinkSettings(
        name=sink,
        home=home,
        options=sink_config.options,
        datasets=sink_config.datasets,
        gateway_id=identity.gateway_id,
        incarnation=identity.incarnation,
        on_spark=on_spark,
    )


def address(home: Home, config: Config, identity: Identity, sink: str) -> str:
    """Return the configured destination of the sink. Raises HypError if its kind cannot determine it."""
    kind = kind_of(config.sinks[sink].kind)
    try:
        return kind.address(settings(home, config, identity, sink))
    except HypError:
        raise
    except Exception as error:
        raise HypError(
            f"the address of the sink {sink} is unknown: {kind.name} failed with {type(error).__name__}: {error}",
            kind="sink_kind_unusable",
            repair="hyp config show",
        ) from error


def kind_of(name: str) -> SinkType:
    """Return the kind of that name. Raises HypError with the reason if it is not installed or broken."""
    if (found := _kinds().get(name)) is not None:
        return found
    broken = [plugin.error for plugin, _ in plugins.inspect(plugins.SINKS) if plugin.name == name]
    reason = f"is broken: {broken[0]}" if broken else "is not installed"
    raise HypError(f"the sink kind {name!r} {reason}", kind="sink_kind_unusable", repair="hyp plugin list")


@contextmanager
def also(kind: SinkType) -> Iterator[None]:
    """Register a kind in this process, or replace the one of that name, within the context: for tests of sinks."""
    before = dict(_kinds())
    _kinds()[kind.name] = kind
    try:
        yield
    finally:
        _kinds().clear()
        _kinds().update(before)


@cache
def _kinds() -> dict[str, SinkType]:
    """Load the kinds once: a round without work must not search the disk for plugins."""
    return {kind.name: kind for kind in plugins.load(plugins.SINKS, SinkType)}
