"""The configured sinks: their kinds, addresses and schedules.

Uses no network and imports nothing heavy: whether a round has anything to do is decided with this module.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import cache

from cronsim import CronSim

from hypaware import plugins
from hypaware.config import Config
from hypaware.errors import ConfigError, HypError
from hypaware.export.sink import SinkSettings, SinkType, SparkRunner
from hypaware.home import Home
from hypaware.home.identity import Identity


def sink_address(home: Home, config: Config, identity: Identity, sink: str) -> str:
    """Return the configured destination of the sink. Raises HypError if its kind cannot determine it."""
    kind, settings = resolve_sink(home, config, identity, sink)
    try:
        return kind.address(settings)
    except HypError:
        raise
    except Exception as error:
        raise HypError(
            f"the address of the sink {sink} is unknown: {kind.name} failed with {type(error).__name__}: {error}",
            kind="sink_kind_unusable",
            repair="hyp config show",
        ) from error


def require_separate_destinations(home: Home, config: Config) -> None:
    """Raise ConfigError if two sinks would deliver the same rows to one destination."""
    seen: dict[tuple[str, str], str] = {}
    for name, sink in config.sinks.items():
        address = ""
        # A destination that cannot be determined here is checked when rows are delivered.
        with suppress(Exception):
            address = sink_kinds()[sink.kind].address(SinkSettings(name, home, sink.options, sink.datasets, "", ""))
        for dataset in sink.datasets if address else ():
            other = seen.setdefault((address, dataset), name)
            if other != name:
                raise ConfigError(
                    f"the sinks {other} and {name} both deliver {dataset} to {address}: each row would arrive twice",
                    kind="destination_taken",
                    repair=f"hyp config unset sinks.{name}",
                )


def resolve_sink(
    home: Home, config: Config, identity: Identity, sink: str, on_spark: SparkRunner | None = None
) -> tuple[SinkType, SinkSettings]:
    """Return the kind and the settings of a sink. Raises HypError if its kind is not installed or broken."""
    configured = config.sinks[sink]
    settings = SinkSettings(
        sink, home, configured.options, configured.datasets, identity.gateway_id, identity.incarnation, on_spark
    )
    if (kind := sink_kinds().get(configured.kind)) is not None:
        return kind, settings
    broken = [plugin.error for plugin, _ in plugins.inspect_group(plugins.SINKS) if plugin.name == configured.kind]
    reason = f"cannot be loaded: {broken[0]}" if broken else "is not installed"
    raise HypError(f"the sink kind {configured.kind!r} {reason}", kind="sink_kind_unusable", repair="hyp plugin list")


@cache
def sink_kinds() -> dict[str, SinkType]:
    """Load the kinds once: a round without work must not search the disk for plugins."""
    return {kind.name: kind for kind in plugins.load_plugins(plugins.SINKS, SinkType)}


def next_round_at(schedule: str, after: datetime) -> datetime:
    """Return the first time of the schedule (five cron fields in UTC) later than `after`, which has a time zone."""
    minute, hour, day, month, weekday = schedule.split(" ")
    # Cron implementations disagree on `*/2` together with a weekday. Here days combine with OR unless a field is `*`.
    fields = (minute, hour, day.replace("*/", "1-31/"), month, weekday.replace("*/", "0-6/"))
    found: datetime = next(CronSim(" ".join(fields), after.astimezone(UTC)))
    return found
