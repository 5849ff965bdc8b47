"""Changes one setting in `config.toml`, and renders the effective configuration.

A change preserves comments, order and spacing. The new text is validated as a whole before it replaces the file
atomically; an invalid change leaves the file unchanged. Concurrent changes wait for each other (a lock on the home's
folder). A rendered config includes the defaults and uses the notation of the file: `"2m"`, not 120.0.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from hypaware.config import parse_config, parse_toml, read_config_text, to_config_error
from hypaware.config.schema import SINK_COMMON, SINK_KINDS, VERSION, Config, Setting, SinkConfig
from hypaware.config.validation import ConfigProblem, format_key, validate
from hypaware.errors import ConfigError
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked
from hypaware.text import did_you_mean

_NEW_FILE = f"version = {VERSION}\n"


@dataclass(frozen=True)
class ConfigChange:
    path: Path
    key: str
    before: Any
    """The value as `hyp config show` prints it, or None if the key was not set or the file was invalid."""
    after: Any


def set_value(home: Home, key: str, value: Any, check: Callable[[Config], None] = lambda _config: None) -> ConfigChange:
    """Set a key such as `flush.interval`. Text is parsed as TOML if that is valid, and otherwise used as is.

    `check` raises ConfigError if the new config must not be written.
    """
    path = _key_path(key)
    durable_files.make_dir(home.root)

    def edit(text: str) -> tuple[str, Config]:
        new, config = _first_valid(text, path, value, home.config)
        check(config)
        return new, config

    return _change(home, path, edit)


def unset_value(home: Home, key: str) -> ConfigChange:
    """Remove a key or a table from the file, so that its default applies again."""
    path = _key_path(key)
    if not home.config.exists():
        raise ConfigError(f"{format_key(path)} is not set: {home.config} does not exist")

    def remove(text: str) -> tuple[str, Config]:
        if _lookup(tomllib.loads(text), path) is None:
            raise ConfigError(f"{format_key(path)} is not set in {home.config}", repair="hyp config show")
        new = remove_key(text, path, home.config)
        return new, parse_config(new, home.config)

    return _change(home, path, remove)


def _change(home: Home, path: tuple[str, ...], edit: Callable[[str], tuple[str, Config]]) -> ConfigChange:
    # A config that is a symbolic link, for example into dotfiles, stays a link.
    target = home.config.resolve()
    with locked(home.root):
        old = read_config_text(target)
        text = old if old is not None else _NEW_FILE
        parse_toml(text, home.config)
        new, config = edit(text)
        if new != old:
            durable_files.write_atomic(target, new.encode())
    before = {}
    with suppress(ConfigError):
        before = to_table(parse_config(text, home.config))
    return ConfigChange(home.config, format_key(path), _lookup(before, path), _lookup(to_table(config), path))


def get_value(config: Config, key: str) -> Any:
    """Return the effective value of a key or a table. Raise ConfigError if there is no such key."""
    path = _key_path(key)
    value = to_table(config)
    for depth, part in enumerate(path):
        if not isinstance(value, dict) or part not in value:
            known = value if isinstance(value, dict) else {}
            raise ConfigError(f"unknown key {format_key(path[: depth + 1])}.{did_you_mean(part, list(known))}")
        value = value[part]
    return value


def _key_path(key: str) -> tuple[str, ...]:
    """Parse a key as TOML does, so that a part that contains a dot can be quoted."""
    try:
        node = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        node = {}
    path: list[str] = []
    inner: Any = node
    while isinstance(inner, dict) and len(inner) == 1:
        part, inner = next(iter(inner.items()))
        path.append(part)
    if inner != 0 or "\n" in key:
        raise ConfigError(f"{key!r} is not a valid key; expected a key such as flush.interval")
    return tuple(path)


def _first_valid(text: str, path: tuple[str, ...], value: Any, name: Path) -> tuple[str, Config]:
    candidates = [value]
    if isinstance(value, str):
        with suppress(tomllib.TOMLDecodeError):
            table = tomllib.loads(f"value = {value}")
            if len(table) == 1:
                candidates.insert(0, table["value"])
    errors: list[ConfigError] = []
    for candidate in candidates:
        try:
            new = replace_value(text, path, candidate, name)
            return new, validate(parse_toml(new, name))
        except ConfigError as error:
            errors.append(error)
        except ConfigProblem as problem:
            # The line is only of interest if the problem is elsewhere in the file.
            is_here = problem.path[: len(path)] == path or path[: len(problem.path)] == problem.path
            errors.append(ConfigError(problem.message) if is_here else to_config_error(problem, new, name))
    raise errors[0]


def replace_value(text: str, path: tuple[str, ...], raw: Any, name: Path) -> str:
    """Return the text with this key set. The result is checked, because a table that is inserted in the middle of a
    file would absorb the keys after it."""
    expected = _expected_table(text, path, raw, name)
    for new_table in (tomlkit.table, tomlkit.inline_table):
        with suppress(TOMLKitError, ValueError):
            new = _render(text, path, raw, new_table)
            if tomllib.loads(new) == expected:
                return new
    raise ConfigError(f"{format_key(path)} cannot be set without changing other keys; edit {name}")


def _render(text: str, path: tuple[str, ...], raw: Any, new_table: Callable[[], Any]) -> str:
    document = tomlkit.parse(text)
    node: Any = document
    for part in path[:-1]:
        node = node.setdefault(part, new_table())
    value = raw
    if isinstance(raw, dict):
        value = new_table()
        value.update(raw)
    node[path[-1]] = value
    return tomlkit.dumps(document)


def _expected_table(text: str, path: tuple[str, ...], raw: Any, name: Path) -> dict[str, Any]:
    table = tomllib.loads(text)
    node = table
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{format_key(path)} cannot be set: {part} is not a table; edit {name}")
    node[path[-1]] = copy.deepcopy(raw)
    return table


def remove_key(text: str, path: tuple[str, ...], name: Path) -> str:
    """Return the text without this key or table. Enclosing tables that become empty may be removed too."""
    document = tomlkit.parse(text)
    _remove(document, path)
    new = tomlkit.dumps(document)
    expected = tomllib.loads(text)
    _remove(expected, path)
    if _without_empty(tomllib.loads(new)) != _without_empty(expected):
        raise ConfigError(f"{format_key(path)} cannot be removed without changing other keys; edit {name}")
    return new


def _remove(table: Any, path: tuple[str, ...]) -> None:
    for part in path[:-1]:
        table = table[part]
    del table[path[-1]]


def _without_empty(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table without empty subtables, which have no meaning."""
    cleaned = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in cleaned.items() if value != {}}


def _lookup(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def to_toml(config: Config) -> str:
    return tomlkit.dumps(to_table(config))


def to_table(config: Any) -> dict[str, Any]:
    """Return a config, or a section of it, as a table that sets every key."""
    found = {}
    for each in fields(config):
        setting: Setting | None = each.metadata.get("setting")
        inner = getattr(config, each.name)
        found[each.name] = setting.kind.write(inner) if setting else _plain(inner)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, SinkConfig):
        return _sink(value)
    if is_dataclass(value):
        return to_table(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value


def _sink(sink: SinkConfig) -> dict[str, Any]:
    kind = SINK_KINDS.get(sink.kind)
    options = {
        name: kind.options[name].kind.write(value) if kind else value
        for name, value in sink.options.items()
        if value is not None
    }
    datasets = SINK_COMMON["datasets"].kind.write(sink.datasets)
    return {"kind": sink.kind, **options, "schedule": sink.schedule, "datasets": datasets}
