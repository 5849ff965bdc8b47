"""The config as it stands in the file now, for processes that live longer than it."""

from __future__ import annotations

from hypaware.config.load import load
from hypaware.config.schema import Config
from hypaware.home import Home


class CurrentConfig:
    """Read anew when the file has changed; raises where it is broken. `[engine]` counts only when an engine starts."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loaded: tuple[tuple[int, int, int] | None, Config] | None = None

    def __call__(self) -> Config:
        seen = self._seen()
        if self._loaded is None or self._loaded[0] != seen:
            self._loaded = (seen, load(self._home))
        return self._loaded[1]

    def _seen(self) -> tuple[int, int, int] | None:
        try:
            found = self._home.config.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
