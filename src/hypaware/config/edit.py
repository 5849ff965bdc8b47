"""Changes one setting in `config.toml`; comments, order and spacing stay as the user wrote them.

The new text is validated as a whole before it replaces the file in one durable step; a change that would not
validate leaves the file as it was. Two changes at once wait for each other (a lock on the home's folder).
"""

from __future__ import annotations

import copy
import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from hypaware import durable
from hypaware.config.load import as_error, parse, parse_toml, read_text
from hypaware.config.read import Problem, read
from hypaware.config.render import to_table
from hypaware.config.schema import VERSION, Config
from hypaware.config.where import dotted
from hypaware.errors import ConfigError
from hypaware.home import Home

_NEW_FILE = f"version = {VERSION}\n"


@dataclass(frozen=True)
class Change:
    path: Path
    key: str
    before: Any
    """As `hyp config show` would print it; None where nothing stood."""
    after: Any


def set_value(home: Home, key: str, value: Any) -> Change:
    """Sets a key such as `flush.interval`. Text is taken as TOML where that is valid, else as itself."""
    path = _key_path(key)
    durable.make_dir(home.root)
    # A config that is a link into somebody's dotfiles stays one.
    target = home.config.resolve()
    with alone(home.root):
        old = read_text(target)
        text = old if old is not None else _NEW_FILE
        parse_toml(text, home.config)
        new, config = _first_valid(text, path, value, home.config)
        if new != old:
            durable.write_file(target, new.encode())
    return Change(home.config, dotted(path), _at(_before(text, home.config), path), _at(to_table(config), path))


def _first_valid(text: str, path: tuple[str, ...], value: Any, name: Path) -> tuple[str, Config]:
    first_error: ConfigError | None = None
    for meant in _meanings(value):
        try:
            new = with_value(text, path, meant, name)
            return new, read(parse_toml(new, name))
        except ConfigError as error:
            first_error = first_error or error
        except Problem as problem:
            first_error = first_error or _refusal(problem, path, new, name)
    assert first_error is not None
    raise first_error


def _refusal(problem: Problem, path: tuple[str, ...], text: str, name: Path) -> ConfigError:
    """Trouble with the new value needs no line; trouble elsewhere in the file does."""
    if problem.path[: len(path)] == path or path[: len(problem.path)] == problem.path:
        return ConfigError(problem.message)
    return as_error(problem, text, name)


def _meanings(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        with suppress(tomllib.TOMLDecodeError):
            found = tomllib.loads(f"value = {value}")
            if len(found) == 1:
                yield found["value"]
    yield value


def _key_path(key: str) -> tuple[str, ...]:
    """A key is read as TOML reads it, so that a part with a dot in it can be quoted."""
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
        raise ConfigError(f"{key!r} is not a key; expected one such as flush.interval")
    return tuple(path)


def with_value(text: str, path: tuple[str, ...], raw: Any, name: Path) -> str:
    """The text with this one key set. Every way of writing it is checked: a table begun in the middle of a file
    would take the keys after it for its own."""
    expected = _expected(text, path, raw, name)
    for new_table in (tomlkit.table, tomlkit.inline_table):
        with suppress(TOMLKitError, ValueError):
            new = _written(text, path, raw, new_table)
            if tomllib.loads(new) == expected:
                return new
    raise ConfigError(f"{dotted(path)} cannot be set without touching other keys; edit {name}")


def without(text: str, path: tuple[str, ...], name: Path) -> str:
    """The text without this table and all that is in it; the tables around it may go with the last one in them."""
    document = tomlkit.parse(text)
    _take_out(document, path)
    new = tomlkit.dumps(document)
    expected = tomllib.loads(text)
    _take_out(expected, path)
    if _filled(tomllib.loads(new)) != _filled(expected):
        raise ConfigError(f"{dotted(path)} cannot be taken out without touching other keys; edit {name}")
    return new


def _take_out(table: Any, path: tuple[str, ...]) -> None:
    for part in path[:-1]:
        table = table[part]
    del table[path[-1]]


def _filled(table: dict[str, Any]) -> dict[str, Any]:
    """Without tables that hold nothing, which mean nothing either."""
    found = {key: _filled(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in found.items() if value != {}}


def _written(text: str, path: tuple[str, ...], raw: Any, new_table: Callable[[], Any]) -> str:
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


def _expected(text: str, path: tuple[str, ...], raw: Any, name: Path) -> dict[str, Any]:
    table = tomllib.loads(text)
    node = table
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{dotted(path)} cannot be set: {part} is not a table; edit {name}")
    node[path[-1]] = copy.deepcopy(raw)
    return table


def _before(text: str, name: Path) -> Any:
    """What stood before; a file that was broken (and is being mended) has nothing to show."""
    try:
        return to_table(parse(text, name))
    except ConfigError:
        return {}


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Whoever changes the config of the home in this folder holds the lock on it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
