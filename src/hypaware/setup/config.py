"""Merge the user's choices into the config.

An existing config is kept, with its comments. Additions are always allowed: a named client is enabled, and a sink is
added if there is none of its name. Changes (another retention, another destination of a sink, removed sinks) require
`force`, and the old file is kept as `config.toml.bak-<time>`.

If the user declines the import of history, `history_from` is set to now, so that the daemon does not import it either.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.backfill.request import is_enabled
from hypaware.config import Config, parse_config, read_config_text
from hypaware.config.edit import remove_key, replace_value
from hypaware.config.schema import VERSION
from hypaware.errors import ConfigError, HypError
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked
from hypaware.setup.discovery import FoundClient
from hypaware.setup.plan import ExportChoice, SetupChoices

_NEW_FILE = f"# `hyp config show` prints every setting, `hyp config set KEY VALUE` changes one.\nversion = {VERSION}\n"
WOULD_CHANGE = "config_would_change"
_SERVER_SINK, _FOLDER_SINK = "team", "archive"
_after_backup = faults.crash_point(
    "setup.config.after-backup", "the old config is copied, the new one is not written yet"
)
_after_write = faults.crash_point(
    "setup.config.after-write", "the config is written, no other step of the setup is done"
)


@dataclass(frozen=True)
class MergedConfig:
    """The config before and after the merge."""

    path: Path
    before: str | None
    after: str
    config: Config
    clients: tuple[str, ...]
    """The chosen clients."""
    changes: tuple[str, ...] = ()
    """Descriptions of existing settings that would change."""
    sink: str | None = None
    """The sink of the chosen export."""

    @property
    def is_changed(self) -> bool:
        return self.after != self.before

    @property
    def diff(self) -> str:
        before, after = (self.before or "").splitlines(), self.after.splitlines()
        return "\n".join(
            difflib.unified_diff(before, after, f"{self.path} (current)", f"{self.path} (new)", "", "", 2, "")
        )


def merge_config(home: Home, choices: SetupChoices, found: Sequence[FoundClient], now: datetime) -> MergedConfig:
    """Return what `write_config` would write. Raise HypError if existing settings would change without `force`."""
    before = read_config_text(home.config)
    edit, is_new = _ConfigEdit(home.config, before or _NEW_FILE, []), before is None
    try:
        config = parse_config(edit.text, home.config)
    except ConfigError as error:
        if not choices.force:
            raise
        edit = _ConfigEdit(home.config, _NEW_FILE, [f"the config is invalid and would be replaced ({error.message})"])
        config, is_new = Config(), True
    if choices.clients is not None:
        clients = tuple(dict.fromkeys(choices.clients))
    else:
        clients = tuple(each.name for each in found if each.installed and (is_new or is_enabled(config, each.name)))
    for name in clients:
        # Write it even if it is the default: the daemon imports only clients that the config names.
        if name not in config.clients or not is_enabled(config, name):
            edit.set(("clients", name, "enabled"), True)
    if not choices.imports:
        for name in _never_imported(clients, config, found):
            edit.set(("clients", name, "history_from"), now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    for name in _deselected_clients(choices, config, found, is_new):
        edit.set(("clients", name, "enabled"), False)
        if not is_new:
            edit.changes.append(f"{name} would no longer be recorded")
    days, current = choices.retention_days, config.retention.default_days
    if is_new:
        edit.set(("retention", "default_days"), days or 0)
    elif days is not None and days != current:
        edit.set(("retention", "default_days"), days)
        edit.changes.append(f"retention.default_days would change from {current} to {days}")
    sink = _set_export(edit, choices.export, config, home) if choices.export else None
    after = parse_config(edit.text, home.config)
    if edit.changes and not choices.force:
        raise HypError(
            f"{home.config} would change: {'; '.join(edit.changes)}. Nothing was done. Pass --force to change it; a "
            "backup copy is kept",
            kind=WOULD_CHANGE,
            repair="hyp config show",
        )
    return MergedConfig(home.config, before, edit.text, after, clients, tuple(edit.changes), sink)


def write_config(
    home: Home, choices: SetupChoices, found: Sequence[FoundClient], now: datetime
) -> tuple[MergedConfig, Path | None]:
    """Write the merged config. If existing settings change, back up the old file and return the path of the copy."""
    durable_files.make_dir(home.root)
    # If the config is a symbolic link, replace its target.
    target = home.config.resolve()
    with locked(home.root):
        merged = merge_config(home, choices, found, now)
        if not merged.is_changed:
            return merged, None
        backup = _back_up(target, now.strftime("%Y%m%dT%H%M%SZ")) if merged.changes else None
        durable_files.write_atomic(target, merged.after.encode())
        _after_write()
    return merged, backup


def default_folder(home: Home) -> str:
    """Return the default folder of exports: next to the home, so that it stays in place if the home is moved."""
    return str(home.root.parent / "hypaware-parquet")


def default_token_file(home: Home) -> str:
    return str(home.root / "server-token")


@dataclass
class _ConfigEdit:
    path: Path
    text: str
    changes: list[str]

    def set(self, key: tuple[str, ...], value: Any) -> None:
        self.text = replace_value(self.text, key, value, self.path)

    def remove(self, key: tuple[str, ...]) -> None:
        self.text = remove_key(self.text, key, self.path)


def _deselected_clients(choices: SetupChoices, config: Config, found: Iterable[FoundClient], is_new: bool) -> list[str]:
    """Return the enabled clients that the user could have chosen and did not.

    Options name all clients of a new config, but only add to an existing one. The questions offer installed clients
    only, so they say nothing about others. A client that is neither installed nor attachable is recorded only if the
    config names it, so nothing is written for it.
    """
    if choices.clients is None or not (is_new or choices.interactive):
        return []
    seen = [each.name for each in found if each.installed or (each.client.settings and not choices.interactive)]
    return [name for name in seen if name not in choices.clients and is_enabled(config, name)]


def _never_imported(clients: Iterable[str], config: Config, found: Iterable[FoundClient]) -> list[str]:
    """Return the clients to bound by `history_from`.

    Clients with an earlier import are left out: a bound would lose the lines written between that import and now.
    """
    imported = {each.name for each in found if each.was_imported or each.client.backfill is None}
    bounded = {name for name, client in config.clients.items() if client.history_from}
    return [name for name in clients if name not in imported | bounded]


def _set_export(edit: _ConfigEdit, export: ExportChoice, config: Config, home: Home) -> str | None:
    if export.kind == "keep-local":
        for name in config.sinks:
            edit.remove(("sinks", name))
            edit.changes.append(f"the sink {name} would be removed")
        return None
    if export.kind == "server":
        name, wanted = _SERVER_SINK, {"kind": "forward", "url": export.place}
        wanted["token_file"] = export.token_file or default_token_file(home)
        required = {"kind", "url", "token_file"} if export.token_file else {"kind", "url"}
    else:
        name, wanted = _FOLDER_SINK, {"kind": "blob", "destination": export.place or default_folder(home)}
        wanted["encoder"] = "parquet"
        required = {"kind", "encoder", "destination"} if export.place else {"kind", "encoder"}
    declared = {sink: {"kind": each.kind, **each.options} for sink, each in config.sinks.items()}
    for sink, options in declared.items():
        # Never take one with a remote destination.
        is_local = "://" not in str(options.get("destination", ""))
        if is_local and all(options.get(key) == wanted[key] for key in required):
            return sink
    if name not in declared:
        edit.set(("sinks", name), wanted)
        return name
    for key in sorted(required):
        if declared[name].get(key) != wanted[key]:
            current = declared[name].get(key)
            edit.changes.append(f"sinks.{name}.{key} would change from {current!r} to {wanted[key]!r}")
            edit.set(("sinks", name, key), wanted[key])
    if declared[name]["kind"] != wanted["kind"]:
        # The other options belong to the old kind.
        edit.remove(("sinks", name))
        edit.set(("sinks", name), wanted)
    return name


def _back_up(target: Path, stamp: str) -> Path:
    """Copy the file next to itself under a name that is not taken."""
    data = target.read_bytes()
    for number in range(1000):
        copy = target.with_name(f"{target.name}.bak-{stamp}{f'-{number}' if number else ''}")
        if not copy.exists():
            durable_files.write_atomic(copy, data)
            _after_backup()
            return copy
    raise HypError(f"too many backup copies of {target}", kind="config_backup")
