"""The current configuration, for long-running processes."""

from __future__ import annotations

from hypaware.config.load import load
from hypaware.config.schema import Config
from hypaware.home import Home


class CurrentConfig:
    """Returns the config and reloads it when the file changes. Raises ConfigError if the file is invalid.

    `[engine]` takes effect only when an engine starts.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loaded: tuple[tuple[int, int, int] | None, Config] | None = None

    def __call__(self) -> Config:
        version = self._file_version()
        if self._loaded is None or self._loaded[0] != version:
            self._loaded = (version, load(self._home))
        return self._loaded[1]

    def _file_version(self) -> tuple[int, int, int] | None:
        try:
            status = self._home.config.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
