"""The home in a status: its identity and location, its state, its config and its disk space."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypaware import config as configuration
from hypaware import text
from hypaware.config import Config
from hypaware.config.validation import find_risks
from hypaware.errors import ConfigError
from hypaware.home import Home, durable_files
from hypaware.home.identity import HomeLocation
from hypaware.spool import segments
from hypaware.state import mirror
from hypaware.state.snapshot import StateSnapshot
from hypaware.state.sqlite_database import suspect_marker
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, error, file_size, info, warning
from hypaware.status.storage import LakeStatus, SpoolStatus
from hypaware.text import summarize_error

# Every command that opens the home repairs these things first; this one changes nothing else.
_OPEN_HOME = "hyp verify"
_FREE_SPACE = ("hyp maintain", "hyp purge --help")
_FULL_BYTES = 256 * 2**20
_TIGHT_BYTES = 2 * 2**30
_MIN_DAYS_LEFT = 14
_WEEK = timedelta(days=7)


def inspect_home(home: Home, state: StateSnapshot) -> PartStatus[dict[str, Any]]:
    location: HomeLocation | None = None
    if home.root.is_dir():
        identity = state.identity or (known.identity if (known := mirror.read_mirror(home.mirror)) else None)
        location = identity.locate(home.root) if identity else None
    facts = {
        "path": str(home.root),
        "exists": home.root.is_dir(),
        "gateway_id": state.identity.gateway_id if state.identity else None,
        "incarnation": state.identity.incarnation if state.identity else None,
        "state": state.condition,
        "whereabouts": location.value if location else None,
        "file_system": durable_files.file_system_type(home.root) if home.root.is_dir() else None,
    }
    return PartStatus(facts, tuple(_home_diagnostics(home, state, location)))


def _home_diagnostics(home: Home, state: StateSnapshot, location: HomeLocation | None) -> Iterator[Diagnostic]:
    if home.root.exists() and not home.root.is_dir():
        yield error("home_no_folder", f"{home.root} is not a folder", f"ls -ld {shlex.quote(str(home.root))}")
    elif home.backup_note.is_file():
        restore = f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}"
        yield error("home_is_backup", f"{home.root} is a backup and cannot be used as a home", restore)
    elif not any(path.exists() for path in (home.config, home.state, home.mirror, home.catalog)) and not (
        segments.list_spooled_datasets(home)
    ):
        yield warning("not_set_up", f"{home.root} is not set up, so nothing is recorded", "hyp setup")
    else:
        yield from _state_diagnostics(home, state)
        yield from _side_file_diagnostics(home, state)
    was = state.identity.home_path if state.identity else "another location"
    if location is HomeLocation.MOVED:
        message = f"the home was moved here from {was}: the next command updates its tables"
        yield warning("home_moved", message, _OPEN_HOME)
    elif location is HomeLocation.COPIED:
        message = f"this home is a copy of the one at {was}: the next command gives it a new identity"
        yield warning("home_copied", f"{message}, under which it delivers", _OPEN_HOME)


def _state_diagnostics(home: Home, state: StateSnapshot) -> Iterator[Diagnostic]:
    if state.condition == "unreadable":
        message = f"the state {home.state} cannot be read ({state.error}): the next command rebuilds it from the lake"
        yield error("state_unreadable", message, _OPEN_HOME)
    elif state.condition == "newer":
        message = f"the state {home.state} was written by a newer version of hypaware"
        yield error("state_too_new", message, "pip install --upgrade hypaware")
    elif state.condition == "none" and (home.mirror.exists() or home.catalog.exists()):
        yield error("state_lost", f"the state {home.state} is missing: the next command rebuilds it", _OPEN_HOME)
    if suspect_marker(home.state).exists():
        message = f"a command found damage in the state {home.state}: the next command checks it"
        yield error("state_suspect", f"{message}, and rebuilds it if needed", _OPEN_HOME)


def _side_file_diagnostics(home: Home, state: StateSnapshot) -> Iterator[Diagnostic]:
    """Check the derived files that a rebuild of the state would need."""
    if state.identity is None:
        return
    if mirror.read_mirror(home.mirror) is None:
        message = f"{home.mirror}, from which a lost state is rebuilt, is missing or damaged"
        yield warning("mirror_unreadable", f"{message}; the next command writes it", _OPEN_HOME)
    try:
        gateway_id = home.gateway.read_text("utf-8").strip()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as problem:
        gateway_id = summarize_error(problem)
    if gateway_id != state.identity.gateway_id:
        message = f"{home.gateway} does not hold this home's gateway id, {state.identity.gateway_id}"
        commands = (f"rm {shlex.quote(str(home.gateway))}", _OPEN_HOME)
        yield warning("gateway_id_differs", f"{message}; remove it, and the next command writes it again", *commands)


@dataclass(frozen=True)
class ConfigStatus:
    config: Config = field(default_factory=Config)
    facts: dict[str, Any] = field(default_factory=dict)


def inspect_config(home: Home) -> PartStatus[ConfigStatus]:
    facts = {"path": str(home.config), "exists": home.config.exists(), "valid": True, "error": None}
    try:
        config = configuration.load(home)
        risks = tuple(
            (info if each.is_chosen else warning)(each.kind, each.message, each.repair) for each in find_risks(config)
        )
        return PartStatus(ConfigStatus(config, facts), risks)
    except ConfigError as exception:
        why = summarize_error(exception)
        diagnostic = error("config_invalid", f"the config is invalid: {why}", "hyp config validate")
        return PartStatus(ConfigStatus(facts={**facts, "valid": False, "error": why}), (diagnostic,))


def inspect_disk(inputs: StatusInput, lake: LakeStatus, spool: SpoolStatus) -> PartStatus[dict[str, Any]]:
    usage = shutil.disk_usage(nearest_folder(inputs.home))
    facts = {
        "path": str(inputs.home.root),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
        "lake_bytes": lake.bytes,
        "spool_bytes": spool.bytes,
        "state_bytes": sum(file_size(path) or 0 for path in (inputs.home.state, inputs.home.keys, inputs.home.catalog)),
        "growth_per_day": _daily_growth(inputs, lake),
    }
    return PartStatus(facts, tuple(_disk_diagnostics(facts, spool)))


def nearest_folder(home: Home) -> Path:
    """Return the home, or the nearest existing folder above it."""
    return next(path for path in (home.root, *home.root.parents) if path.is_dir())


def _daily_growth(inputs: StatusInput, lake: LakeStatus) -> int:
    """Return the average growth of the last week, in bytes per day."""
    since = (inputs.now - _WEEK).date()
    files = (file for table in lake.tables.values() for file in table.files)
    return sum(file.bytes for file in files if file.day and file.day > since) // _WEEK.days


def _disk_diagnostics(facts: dict[str, Any], spool: SpoolStatus) -> Iterator[Diagnostic]:
    free, growth = facts["free_bytes"], facts["growth_per_day"]
    left = f"{text.format_size(free)} are free on the disk of {facts['path']}"
    # A flush writes the spooled rows a second time before it removes the segments.
    if free < _FULL_BYTES + 2 * spool.bytes:
        yield error("disk_full", f"{left}: recording will stop soon", *_FREE_SPACE)
    elif free < _TIGHT_BYTES:
        yield warning("disk_tight", f"only {left}", *_FREE_SPACE)
    elif growth and free / growth < _MIN_DAYS_LEFT:
        rate = f"{text.format_count(int(free / growth), 'day')} at {text.format_size(growth)} a day"
        yield warning("disk_filling", f"{left}, which will last {rate}", *_FREE_SPACE)
