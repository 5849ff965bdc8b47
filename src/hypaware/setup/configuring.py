"""The config that follows from the choices: what is added to one that is there, what would be changed in it.

A config that is there is kept, with its comments. Adding is free: a client that was named is enabled, a sink is
declared where there is none of its name. Changing needs the user's word (`force`), and a copy of the old file stays as
`config.toml.bak-<time>`: another retention, another place of a sink, sinks that go.

Who does not want the history has it written down (`history_from`): the daemon would import it a minute later.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import durable, faults
from hypaware.backfill.selection import is_enabled
from hypaware.config import Config
from hypaware.config.edit import alone, with_value, without
from hypaware.config.load import parse, read_text
from hypaware.config.schema import VERSION
from hypaware.errors import ConfigError, HypError
from hypaware.home import Home
from hypaware.setup.choices import Choices, Export
from hypaware.setup.finding import FoundClient

_NEW_FILE = f"# `hyp config show` prints every setting, `hyp config set KEY VALUE` changes one.\nversion = {VERSION}\n"
WOULD_CHANGE = "config_would_change"
_SERVER_SINK, _FOLDER_SINK = "team", "archive"

_after_backup = faults.point("setup.config.after-backup", "a copy of the old config is there, the new one is not")
_after_write = faults.point("setup.config.after-write", "the config is written, nothing else of the set-up is done")


@dataclass(frozen=True)
class Configured:
    """The config as it was and as it will be."""

    path: Path
    before: str | None
    after: str
    config: Config
    clients: tuple[str, ...]
    """The chosen ones."""
    changes: tuple[str, ...] = ()
    """What the config says now and would say no longer."""
    sink: str | None = None
    """The sink that the chosen export goes to."""

    @property
    def is_changed(self) -> bool:
        return self.after != self.before

    @property
    def diff(self) -> str:
        before, after = (self.before or "").splitlines(), self.after.splitlines()
        return "\n".join(
            difflib.unified_diff(before, after, f"{self.path} (now)", f"{self.path} (then)", "", "", 2, "")
        )


@dataclass(frozen=True)
class Written:
    configured: Configured
    backup: Path | None = None


def foretell(home: Home, choices: Choices, found: Sequence[FoundClient], now: datetime) -> Configured:
    """What `write` would write. Raises HypError where the choices would change what stands there without `force`."""
    return _refused(_merged(home, read_text(home.config), choices, found, now), choices)


def write(home: Home, choices: Choices, found: Sequence[FoundClient], now: datetime) -> Written:
    durable.make_dir(home.root)
    # A config that is a link into somebody's dotfiles stays one.
    target = home.config.resolve()
    with alone(home.root):
        made = foretell(home, choices, found, now)
        if not made.is_changed:
            return Written(made)
        backup = _keep(target, now.strftime("%Y%m%dT%H%M%SZ")) if made.changes else None
        durable.write_file(target, made.after.encode())
        _after_write()
    return Written(made, backup)


def usual_folder(home: Home) -> str:
    """Beside the home, not in it: a home that is moved takes everything along, and a sink must stay where it is."""
    return str(home.root.parent / "hypaware-parquet")


def usual_token_file(home: Home) -> str:
    return str(home.root / "server-token")


def _merged(
    home: Home, before: str | None, choices: Choices, found: Sequence[FoundClient], now: datetime
) -> Configured:
    edit = _Edit(home.config, before or _NEW_FILE, [])
    is_new = before is None
    try:
        config = parse(edit.text, home.config)
    except ConfigError as error:
        if not choices.force:
            raise
        edit = _Edit(home.config, _NEW_FILE, [f"the config was broken, and is made anew ({error.message})"])
        config, is_new = Config(), True
    clients = _chosen(choices, config, found, is_new)
    for name in clients:
        # Also where it is so by default: the daemon goes by what was chosen.
        if name not in config.clients or not is_enabled(config, name):
            edit.set(("clients", name, "enabled"), True)
    if not choices.imports:
        for name in _never_imported(clients, config, found):
            edit.set(("clients", name, "history_from"), now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    for name in _left_out(choices, config, found, is_new):
        edit.set(("clients", name, "enabled"), False)
        if not is_new:
            edit.changes.append(f"{name} is recorded, and would be no longer")
    _retain(edit, choices.retention_days, config, is_new)
    sink = _export(edit, choices.export, config, home) if choices.export else None
    after = parse(edit.text, home.config)
    return Configured(home.config, before, edit.text, after, clients, tuple(edit.changes), sink)


@dataclass
class _Edit:
    path: Path
    text: str
    changes: list[str]

    def set(self, key: tuple[str, ...], value: Any) -> None:
        self.text = with_value(self.text, key, value, self.path)

    def remove(self, key: tuple[str, ...]) -> None:
        self.text = without(self.text, key, self.path)


def _chosen(choices: Choices, config: Config, found: Iterable[FoundClient], is_new: bool) -> tuple[str, ...]:
    if choices.clients is not None:
        return tuple(dict.fromkeys(choices.clients))
    return tuple(each.name for each in found if each.installed and (is_new or is_enabled(config, each.name)))


def _left_out(choices: Choices, config: Config, found: Iterable[FoundClient], is_new: bool) -> list[str]:
    """Those that would be recorded, and were not chosen where one could choose them.

    A flag names all that a new config shall record, and adds to one that is there. An answer says nothing of a client
    that is not installed.
    """
    if choices.clients is None or not (is_new or choices.interactive):
        return []
    seen = [each.name for each in found if each.installed or not choices.interactive]
    return [name for name in seen if name not in choices.clients and is_enabled(config, name)]


def _never_imported(clients: Iterable[str], config: Config, found: Iterable[FoundClient]) -> list[str]:
    """Where an import was begun, a bound would lose what was written between its end and now."""
    begun = {each.name for each in found if each.is_begun or each.client.backfill is None}
    bounded = {name for name, said in config.clients.items() if said.history_from}
    return [name for name in clients if name not in begun | bounded]


def _retain(edit: _Edit, days: int | None, config: Config, is_new: bool) -> None:
    now = config.retention.default_days
    if is_new:
        edit.set(("retention", "default_days"), days or 0)
    elif days is not None and days != now:
        edit.set(("retention", "default_days"), days)
        edit.changes.append(f"retention.default_days is {now}, and would become {days}")


def _export(edit: _Edit, export: Export, config: Config, home: Home) -> str | None:
    if export.kind == "keep-local":
        for name in config.sinks:
            edit.remove(("sinks", name))
            edit.changes.append(f"the sink {name} would go")
        return None
    if export.kind == "server":
        name, wanted = _SERVER_SINK, {"kind": "forward", "url": export.place}
        wanted["token_file"] = export.token_file or usual_token_file(home)
        asked = {"kind", "url", "token_file"} if export.token_file else {"kind", "url"}
    else:
        name, wanted = _FOLDER_SINK, {"kind": "blob", "destination": export.place or usual_folder(home)}
        wanted["encoder"] = "parquet"
        asked = {"kind", "encoder", "destination"} if export.place else {"kind", "encoder"}
    declared = {sink: {"kind": each.kind, **each.options} for sink, each in config.sinks.items()}
    if (there := _that_does(declared, {key: wanted[key] for key in asked})) is not None:
        return there
    if name not in declared:
        edit.set(("sinks", name), wanted)
        return name
    for key in sorted(asked):
        if declared[name].get(key) != wanted[key]:
            edit.changes.append(f"sinks.{name}.{key} is {declared[name].get(key)!r}, and would become {wanted[key]!r}")
            edit.set(("sinks", name, key), wanted[key])
    if declared[name]["kind"] != wanted["kind"]:
        # What else stands there belongs to the other kind.
        edit.remove(("sinks", name))
        edit.set(("sinks", name), wanted)
    return name


def _that_does(declared: Mapping[str, Mapping[str, Any]], asked: Mapping[str, str]) -> str | None:
    """The sink that does already what is asked for; a folder is one of this machine."""
    for name, options in declared.items():
        is_local = "://" not in str(options.get("destination", ""))
        if is_local and all(options.get(key) == value for key, value in asked.items()):
            return name
    return None


def _refused(made: Configured, choices: Choices) -> Configured:
    if made.changes and not choices.force:
        raise HypError(
            f"{made.path} says otherwise: {'; '.join(made.changes)}. Nothing was done. With --force it is changed, and "
            "a copy of it is kept",
            kind=WOULD_CHANGE,
            repair="hyp config show",
        )
    return made


def _keep(target: Path, stamp: str) -> Path:
    """A copy beside it that no later one takes the place of."""
    data = target.read_bytes()
    for number in range(1000):
        copy = target.with_name(f"{target.name}.bak-{stamp}{f'-{number}' if number else ''}")
        if not copy.exists():
            durable.write_file(copy, data)
            _after_backup()
            return copy
    raise HypError(f"there are too many copies of {target} already", kind="config_backup")
