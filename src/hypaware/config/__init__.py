"""The configuration of a home: `config.toml`, version 1. Every key has a default.

`schema` defines the settings, `validation` checks them, and `edit` changes one and preserves the user's comments. This
module loads the file; an error names the key, the line and the expected value. A missing file means all defaults. A
file with any error is rejected as a whole, because silently using the default of a misspelt setting is worse than
stopping.
"""

from __future__ import annotations

import logging
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypaware.config.schema import (
    ClientConfig,
    Config,
    EngineConfig,
    FlushConfig,
    GatewayConfig,
    IndexConfig,
    LakeConfig,
    MaintainConfig,
    OtlpConfig,
    PageConfig,
    PrivacyConfig,
    RedactionConfig,
    RetentionConfig,
    SinkConfig,
    UpstreamConfig,
    UsageConfig,
)
from hypaware.config.validation import ConfigProblem, KeyPath, validate
from hypaware.errors import ConfigError
from hypaware.home import Home

__all__ = [
    "ClientConfig",
    "Config",
    "EngineConfig",
    "FlushConfig",
    "GatewayConfig",
    "IndexConfig",
    "LakeConfig",
    "MaintainConfig",
    "OtlpConfig",
    "PageConfig",
    "PrivacyConfig",
    "RedactionConfig",
    "RetentionConfig",
    "SinkConfig",
    "UpstreamConfig",
    "UsageConfig",
    "load",
]
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_MAX_LINES = 2000


def load(home: Home) -> Config:
    text = read_config_text(home.config)
    return Config() if text is None else parse_config(text, home.config)


class CurrentConfig:
    """Returns the config of a long-running process and reloads it when the file changes.

    Raises ConfigError if the file is invalid. `[engine]` takes effect only when an engine starts.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loaded: tuple[tuple[int, int, int] | None, Config] | None = None

    def __call__(self) -> Config:
        version = None
        with suppress(FileNotFoundError):
            status = self._home.config.stat()
            version = status.st_ino, status.st_size, status.st_mtime_ns
        if self._loaded is None or self._loaded[0] != version:
            self._loaded = (version, load(self._home))
        return self._loaded[1]


class LiveConfig:
    """Returns the current config of a daemon or server. An invalid file is logged and the previous config stays.

    Raises ConfigError on creation if the file is invalid. Any thread may call it.
    """

    def __init__(self, home: Home, log: logging.Logger) -> None:
        self._file = CurrentConfig(home)
        self._config = self._file()
        self._log = log
        self._last_error: str | None = None

    def __call__(self) -> Config:
        try:
            self._config = self._file()
            self._last_error = None
        except (ConfigError, OSError) as error:
            if self._last_error != str(error):
                self._last_error = str(error)
                self._log.error("the config is invalid; the previous one stays in force: %s", error)
        return self._config

    @property
    def is_valid(self) -> bool:
        """Whether the file was valid at the last call."""
        return self._last_error is None


def read_config_text(path: Path) -> str | None:
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


def parse_config(text: str, path: Path) -> Config:
    """Parse and validate the text of a config file. `path` is used in messages only."""
    try:
        return validate(parse_toml(text, path))
    except ConfigProblem as problem:
        raise to_config_error(problem, text, path) from None


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


def to_config_error(problem: ConfigProblem, text: str, path: Path) -> ConfigError:
    line = find_line(text, problem.path)
    return ConfigError(f"{path}, line {line}: {problem.message}" if line else f"{path}: {problem.message}")


def find_line(text: str, path: KeyPath) -> int | None:
    """Return the line, from 1, of the statement that defines the key, or None if it is unknown.

    A TOML file is a list of statements, and the text up to the end of any statement is valid TOML. So the key is
    defined by the statement that follows the longest valid prefix without it. This is slow, and used only for errors.
    """
    lines = text.splitlines(keepends=True)
    if len(lines) > _MAX_LINES:
        return None
    begin = 1
    for count in range(1, len(lines) + 1):
        try:
            value: Any = tomllib.loads("".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        with suppress(KeyError, IndexError, TypeError):
            for part in path:
                value = value[part]
            return begin
        begin = count + 1
    return None
