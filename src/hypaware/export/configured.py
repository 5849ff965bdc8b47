"""The sinks of the config, each with its kind and the address that the config gives it.

Asks nobody and imports nothing heavy: rounds that have nothing to do are decided with it.
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
    """The named sinks, each once, or all; a name that the config does not have is an error."""
    wanted = list(dict.fromkeys(names)) or list(config.sinks)
    for name in wanted:
        if name not in config.sinks:
            known = nearest(name, list(config.sinks)) if config.sinks else " The config declares none."
            raise HypError(f"there is no sink {name!r}.{known}", kind="unknown_sink", repair="hyp config show")
    return wanted


def settings(
    home: Home, config: Config, identity: Identity, sink: str, on_spark: OnSpark | None = None
) -> SinkSettings:
    declared = config.sinks[sink]
    return SinkSettings(
        name=sink,
        home=home,
        options=declared.options,
        datasets=declared.datasets,
        gateway_id=identity.gateway_id,
        incarnation=identity.incarnation,
        on_spark=on_spark,
    )


def address(home: Home, config: Config, identity: Identity, sink: str) -> str:
    """Where the config says that the sink's rows go; HypError where nothing can tell."""
    kind = kind_of(config.sinks[sink].kind)
    try:
        return kind.address(settings(home, config, identity, sink))
    except HypError:
        raise
    except Exception as error:
        raise HypError(
            f"the sink {sink} has no address: {kind.name} failed with {type(error).__name__}: {error}",
            kind="sink_kind_unusable",
            repair="hyp config show",
        ) from error


def kind_of(name: str) -> SinkType:
    """Raises HypError with the reason where the kind is not installed, or broken."""
    if (found := _kinds().get(name)) is not None:
        return found
    broken = [plugin.error for plugin, _ in plugins.inspect(plugins.SINKS) if plugin.name == name]
    why = f"is broken: {broken[0]}" if broken else "is not installed"
    raise HypError(f"the kind of sink {name!r} {why}", kind="sink_kind_unusable", repair="hyp plugin list")


@contextmanager
def also(kind: SinkType) -> Iterator[None]:
    """Within it, this process knows one more kind, or another one of that name: for tests of sinks."""
    before = dict(_kinds())
    _kinds()[kind.name] = kind
    try:
        yield
    finally:
        _kinds().clear()
        _kinds().update(before)


@cache
def _kinds() -> dict[str, SinkType]:
    """Looked for once: a round that has nothing to do must not search the disk for plugins."""
    return {kind.name: kind for kind in plugins.load(plugins.SINKS, SinkType)}
