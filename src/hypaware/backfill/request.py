"""Parse an import request: its providers, its time window, and the environment variables that providers may see.

The caller resolves it once: a relative date refers to the moment of the call, and the engine that runs the import may
have been started with other environment variables.

A date is ISO 8601 (a day alone means the whole day in UTC; a time without a zone is UTC) or an age: `30m`, `12h`,
`7d`, `2w`. Retention bounds the window like `since`; the later of the two applies. Anything else is rejected, never
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from hypaware.backfill.providers import RESERVED, ProviderRegistry, RegisteredProvider
from hypaware.clients.reader import TimeWindow
from hypaware.config import ClientConfig, Config
from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.model.columns import format_timestamp, preview
from hypaware.text import did_you_mean

_AGO = re.compile(r"([0-9]{1,9})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Of ISO 8601's date forms only calendar days: a week or a month does not name one day.
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


@dataclass(frozen=True)
class ImportRequest:
    selection: ProviderSelection
    window: TimeWindow
    retention_days: int
    environment: Mapping[str, str]

    def as_args(self, run_id: str) -> dict[str, Any]:
        """Return the arguments of the engine job, as plain JSON."""
        return {
            "providers": [each.name for each in self.selection.chosen],
            "since": self.window.since,
            "until": self.window.until,
            "retention_days": self.retention_days,
            "environment": dict(self.environment),
            "run_id": run_id,
        }


def parse_request(
    home: Home,
    config: Config,
    providers: ProviderRegistry,
    *,
    names: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    retention_days: int | None = None,
    now: datetime,
    variables: Mapping[str, str],
) -> ImportRequest:
    """Raise UsageError for invalid dates, HypError for unknown names. `variables` is the caller's environment."""
    default = config.retention.default_days
    window = resolve_window(since, until, retention_days, default, now)
    selection = select_providers(providers, config, names)
    return ImportRequest(
        selection=selection,
        window=window,
        retention_days=default if retention_days is None else retention_days,
        environment=_provider_environment(selection, variables, home),
    )


@dataclass(frozen=True)
class ImportArguments:
    """The arguments of an import."""

    providers: tuple[str, ...]
    window: TimeWindow
    environment: Mapping[str, str]
    now: datetime
    retention_days: int | None = None

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> ImportArguments:
        return cls(
            tuple(args["providers"]),
            TimeWindow(args.get("since"), args.get("until")),
            args.get("environment") or {},
            datetime.now(UTC),
            args.get("retention_days"),
        )


@dataclass(frozen=True)
class ProviderSelection:
    chosen: tuple[RegisteredProvider, ...]
    why_none: str | None = None
    """The message for the user if no provider was chosen."""


def select_providers(providers: ProviderRegistry, config: Config, names: Sequence[str] = ()) -> ProviderSelection:
    """Return the named providers, or the enabled ones without names; raise HypError for an unknown or broken name."""
    if names:
        return ProviderSelection(tuple(_get_named(providers, name) for name in dict.fromkeys(names)))
    chosen = tuple(each for each in providers if is_enabled(config, each.name))
    if chosen:
        return ProviderSelection(chosen)
    if not len(providers):
        return ProviderSelection((), "no provider is registered, so there is no history to import")
    known = [each.name for each in providers]
    return ProviderSelection(
        (),
        f"no provider is enabled in the config (registered: {', '.join(known)}). "
        f"Name one (hyp backfill {known[0]}) or enable it (hyp config set clients.{known[0]}.enabled true)",
    )


def is_enabled(config: Config, name: str) -> bool:
    return config.clients.get(name, ClientConfig()).enabled


def _get_named(providers: ProviderRegistry, name: str) -> RegisteredProvider:
    if found := providers.get(name):
        return found
    if name in RESERVED:
        raise UsageError(f"{name} is a subcommand of hyp backfill; put it first", repair=f"hyp backfill {name} --help")
    for plugin in providers.broken:
        if plugin.name == name:
            raise HypError(
                f"cannot load the client {name} from {plugin.distribution}: {plugin.error}",
                kind="provider_broken",
                repair="hyp plugin list",
            )
    known = [each.name for each in providers]
    hint = did_you_mean(name, known) or " No provider is registered."
    raise HypError(f"unknown provider {name!r}.{hint}", kind="unknown_provider", repair="hyp backfill list")


def _provider_environment(selection: ProviderSelection, variables: Mapping[str, str], home: Home) -> dict[str, str]:
    """Return HOME, HYP_HOME and the variables that the chosen providers request."""
    requested = {"HOME", *(name for each in selection.chosen for name in each.provider.environment)}
    found = {name: _make_absolute(variables[name]) for name in sorted(requested) if name in variables}
    return {**found, "HYP_HOME": str(home.root)}


def _make_absolute(value: str) -> str:
    """Make an existing relative path absolute: the engine has another working directory."""
    return str(Path(value).absolute()) if value and not Path(value).is_absolute() and Path(value).exists() else value


def resolve_window(
    since: str | None, until: str | None, retention_days: int | None, config_default_days: int, now: datetime
) -> TimeWindow:
    """Return the window of the options; `now` must be timezone-aware. A retention of 0 days means no limit."""
    earliest = parse_date("--since", since, time.min, now)
    latest = parse_date("--until", until, time.max, now)
    if earliest and latest and earliest > latest:
        raise UsageError(f"--since {since} is after --until {until}")
    bound = _retention_start(retention_days, config_default_days, now)
    if bound and latest and bound > latest:
        raise UsageError(
            f"--until {until} is before the start of the retention period ({format_timestamp(bound)})",
            repair="hyp backfill --retention-days 0",
        )
    if bound and (earliest is None or bound > earliest):
        earliest = bound
    return TimeWindow(format_timestamp(earliest) if earliest else None, format_timestamp(latest) if latest else None)


def _retention_start(given: int | None, default: int, now: datetime) -> datetime | None:
    days = default if given is None else given
    if days < 0:
        raise UsageError(f"--retention-days is {days}; it must be 0 (no limit) or more")
    try:
        return now - timedelta(days=days) if days else None
    except OverflowError:
        return None


def parse_date(option: str, text: str | None, time_of_a_day: time, now: datetime) -> datetime | None:
    """Parse a date option; `time_of_a_day` is the time that a day without one gets."""
    if text is None:
        return None
    written = text.strip()
    try:
        if ago := _AGO.fullmatch(written):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if not _DAY.match(written):
            raise ValueError
        if _DAY.fullmatch(written):
            return datetime.combine(date.fromisoformat(written), time_of_a_day, UTC)
        found = datetime.fromisoformat(written)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{option} {preview(text)} is outside the years 1 to 9999") from None
    except ValueError:
        raise UsageError(
            f"{option} {preview(text)} is not a date; write 2026-11-15, 2026-11-15T08:00:00Z, or an age: 7d, 12h"
        ) from None
