"""What an import may read: its providers, time window, environment variables, and privacy policy.

The caller resolves it once: the engine may have been started with other environment variables. A date is ISO 8601 (a
day alone means the whole day in UTC; a time without a zone is UTC) or an age: `30m`, `12h`, `7d`, `2w`. Retention
bounds the window like `since`; the later of the two applies.

Rows of a folder or session with the privacy class `ignore` are not imported; they are counted with the reason. The
source's checkpoint records the ignored folders and sessions. When one of them is no longer ignored, the checkpoint is
discarded and the source is read again from the beginning. A filter evaluates each folder and session once per source,
so that all rows of a source are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hypaware import telemetry
from hypaware.backfill.providers import RESERVED, ProviderRegistry, RegisteredProvider
from hypaware.clients.client import OptionalProvider, Provider, Source
from hypaware.clients.reader import TimeWindow
from hypaware.config import ClientConfig, Config, PrivacyConfig, RedactionConfig
from hypaware.errors import HypError, UsageError
from hypaware.home import Home, machine_facts, session_context
from hypaware.model.columns import format_timestamp
from hypaware.model.dates import parse_date
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import policy
from hypaware.privacy.ignored_sessions import read_ignored_sessions
from hypaware.privacy.policy import IGNORED_BY_SESSION, PrivacyPolicy
from hypaware.privacy.redact import Redaction, load_marker_key, redact_text
from hypaware.state.flushes import SourceCheckpoint
from hypaware.text import did_you_mean

FOLDER_IGNORED, SESSION_IGNORED = "folder_ignored", "session_ignored"
"""Reasons in `lines_skipped`."""
# Enough for any real transcript. Beyond it, the rest becomes due when any recorded folder is no longer ignored.
_MAX_PAIRS = 1000
FolderAndSession = tuple[str | None, str | None]
"""(cwd, session id) of a row."""


@dataclass(frozen=True)
class ImportRequest:
    selection: ProviderSelection
    window: TimeWindow
    environment: Mapping[str, str]
    args: dict[str, Any]
    """The arguments of the engine job, as plain JSON."""


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
    selection = select_providers(providers, config, names, variables)
    requested = {"HOME", *(name for each in selection.chosen for name in each.provider.environment)}
    found = {name: variables[name] for name in sorted(requested) if name in variables}
    for name, value in found.items():
        # The engine has another working directory.
        if value and not Path(value).is_absolute() and Path(value).exists():
            found[name] = str(Path(value).absolute())
    environment = {**found, "HYP_HOME": str(home.root)}
    args = {
        "providers": [each.name for each in selection.chosen],
        "since": window.since,
        "until": window.until,
        "retention_days": default if retention_days is None else retention_days,
        "environment": environment,
        "run_id": telemetry.dev_run_id(),
    }
    return ImportRequest(selection, window, environment, args)


@dataclass(frozen=True)
class ImportArguments:
    """The arguments of an import. Those of the engine job have the same names."""

    providers: Sequence[str]
    since: str | None = None
    until: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    retention_days: int | None = None
    run_id: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def window(self) -> TimeWindow:
        return TimeWindow(self.since, self.until)


@dataclass(frozen=True)
class ProviderSelection:
    chosen: tuple[RegisteredProvider, ...]
    why_none: str | None = None
    """The message for the user if no provider was chosen."""


def select_providers(
    providers: ProviderRegistry, config: Config, names: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> ProviderSelection:
    """Return the named providers, or the enabled ones without names; raise HypError for an unknown or broken name.

    `variables` is the environment in which optional providers look for history.
    """
    if names:
        return ProviderSelection(tuple(_get_named(providers, name) for name in dict.fromkeys(names)))
    chosen = tuple(
        each
        for each in providers
        if is_enabled(config, each.name) and (each.name in config.clients or _is_found(each.provider, variables or {}))
    )
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


def _is_found(provider: Provider, variables: Mapping[str, str]) -> bool:
    """Return whether a provider takes part in an import of all clients."""
    if not (isinstance(provider, OptionalProvider) and provider.only_if_found):
        return True
    try:
        return any(isinstance(each, Source) for each in provider.find(variables))
    except Exception:
        # The import reports it.
        return True


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


def resolve_window(
    since: str | None, until: str | None, retention_days: int | None, config_default_days: int, now: datetime
) -> TimeWindow:
    """Return the window of the options; `now` must be timezone-aware. A retention of 0 days means no limit."""
    earliest = parse_date("--since", since, time.min, now)
    latest = parse_date("--until", until, time.max, now)
    if earliest and latest and earliest > latest:
        raise UsageError(f"--since {since} is after --until {until}")
    days = config_default_days if retention_days is None else retention_days
    if days < 0:
        raise UsageError(f"--retention-days is {days}; it must be 0 (no limit) or more")
    bound = None
    # A period that begins before the year 1 is no limit.
    with suppress(OverflowError):
        bound = now - timedelta(days=days) if days else None
    if bound and latest and bound > latest:
        raise UsageError(
            f"--until {until} is before the start of the retention period ({format_timestamp(bound)})",
            repair="hyp backfill --retention-days 0",
        )
    if bound and (earliest is None or bound > earliest):
        earliest = bound
    return TimeWindow(format_timestamp(earliest) if earliest else None, format_timestamp(latest) if latest else None)


@dataclass(frozen=True)
class ImportPolicy:
    home: Home | None = None
    """Without a home, every row is imported unchanged."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    redaction: RedactionConfig = field(default_factory=RedactionConfig)
    remembers: bool = False
    """Whether the policies of folders are recorded; a dry run does not."""
    marker_key: bytes = b""
    """Loaded before the tasks start, because they may run on a machine that cannot see the home."""

    @classmethod
    def from_config(cls, home: Home, config: Config, *, remembers: bool = True) -> ImportPolicy:
        key = load_marker_key(home, is_dry_run=not remembers) if config.redaction.kept else b""
        return cls(home, config.privacy, config.redaction, remembers, key)

    def drop_stale(self, checkpoints: Mapping[str, SourceCheckpoint]) -> dict[str, SourceCheckpoint]:
        """Return the checkpoints without those of sources whose ignored rows may be imported now."""
        if self.home is not None:
            policy.check_privacy_files(self.home)
        is_ignored = self.row_filter().skip_reason
        return {
            path: checkpoint for path, checkpoint in checkpoints.items() if all(map(is_ignored, checkpoint.ignored))
        }

    def row_filter(self) -> ImportFilter:
        redaction = Redaction(self.marker_key, frozenset(self.redaction.rules_off)) if self.redaction.kept else None
        if self.home is None:
            return ImportFilter(None, redaction)
        if machine_facts.is_remote():
            return ImportFilter(partial(_ask_reason, self, self.home), redaction)
        return ImportFilter(partial(_find_reason, self.policy(self.home)), redaction)

    def policy(self, home: Home) -> PrivacyPolicy:
        return PrivacyPolicy.from_config(home, self.privacy, remember=self.remembers)


UNRESTRICTED = ImportPolicy()


@dataclass
class ImportFilter:
    """Decides which rows are imported, and redacts them. Remembers every decision."""

    find_reason: Callable[[FolderAndSession], str | None] | None
    redaction: Redaction | None = None
    reasons: dict[FolderAndSession, str | None] = field(default_factory=dict)

    def list_ignored(self, earlier: tuple[FolderAndSession, ...]) -> tuple[FolderAndSession, ...]:
        """Return the ignored pairs of earlier imports, whose lines are not read again, and those of this one."""
        ignored = [pair for pair, reason in self.reasons.items() if reason]
        return tuple(dict.fromkeys((*earlier, *ignored)))[:_MAX_PAIRS]

    def skip_reason(self, pair: FolderAndSession) -> str | None:
        """Return why rows of this folder and session are not imported; None if they are."""
        try:
            return self.reasons[pair]
        except KeyError:
            reason = self.find_reason(pair) if self.find_reason else None
            self.reasons[pair] = reason
            return reason

    def redact_text(self, text: bytes) -> bytes:
        if self.redaction is None:
            return text
        return redact_text(text.decode("utf-8", "replace"), self.redaction)[0].encode()


def _find_reason(privacy: PrivacyPolicy, pair: FolderAndSession) -> str | None:
    verdict = privacy.decide(*pair)
    if verdict.privacy_class is not PrivacyClass.IGNORE:
        return None
    return SESSION_IGNORED if verdict.reason == IGNORED_BY_SESSION else FOLDER_IGNORED


def _ask_reason(policy: ImportPolicy, home: Home, pair: FolderAndSession) -> str | None:
    """Return what `_find_reason` returns on the machine of the home, with one question for each folder."""
    cwd, session = pair
    no_folders: Mapping[str, str] = {}
    unknown: str | None = FOLDER_IGNORED
    # All questions at once, so that one more round answers them. A title may be of a session without a folder.
    machine_facts.look_up(_find_folder_reason, policy, None, default=unknown, key=(None,))
    folders = machine_facts.look_up(session_context.started_folders, home, default=no_folders)
    ignored = machine_facts.look_up(_list_ignored_sessions, home, default=frozenset[str]())
    if not cwd and session:
        cwd = folders.get(session)
    by_folder = machine_facts.look_up(_find_folder_reason, policy, cwd, default=unknown, key=(cwd,))
    if by_folder is not None:
        return by_folder
    return SESSION_IGNORED if session in ignored else None


def _find_folder_reason(policy: ImportPolicy, cwd: str | None) -> str | None:
    assert policy.home is not None
    return _find_reason(policy.policy(policy.home), (cwd, None))


def _list_ignored_sessions(home: Home) -> frozenset[str]:
    listed = read_ignored_sessions(home).items()
    return frozenset(
        session for session, entry in listed if PrivacyClass.parse(str(entry.get("class", ""))) is PrivacyClass.IGNORE
    )
