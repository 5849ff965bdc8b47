"""Loads `config.toml`. An error names the key, the line and the expected value.

A missing file means all defaults. A file with any error is rejected as a whole, because silently using the default of
a misspelt setting is worse than stopping.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hypaware.config.read import Problem, read
from hypaware.config.schema import Config
from hypaware.config.where import line_of
from hypaware.errors import ConfigError
from hypaware.home import Home

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def load(home: Home) -> Config:
    text = read_text(home.config)
    return Config() if text is None else parse(text, home.config)


def read_text(path: Path) -> str | None:
    """Return the text of the file, or None if it does not exist."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None


def parse(text: str, path: Path) -> Config:
    """Parse and validate the text of a config file. `path` is used in messages only."""
    try:
        return read(parse_toml(text, path))
    except Problem as problem:
        raise as_error(problem, text, path) from None


def as_error(problem: Problem, text: str, path: Path) -> ConfigError:
    line = line_of(text, problem.path)
    at = f"{path}, line {line}" if line else str(path)
    return ConfigError(f"{at}: {problem.message}")


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        message = str(error)
        position = _POSITION.search(message)
        if position and position[1]:
            line, column = int(position[1]), int(position[2])
        else:
            line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        reason = _POSITION.sub("", message)
        raise ConfigError(f"{path}, line {line}, column {column}: {reason}; the file is not valid TOML") from None
