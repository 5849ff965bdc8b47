"""The server's config while it runs: as the file has it now. One that is broken leaves the last good one in force."""

from __future__ import annotations

from hypaware.config import Config
from hypaware.config.current import CurrentConfig
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.server.trouble import log


class Settings:
    """Asked by any thread, at every look."""

    def __init__(self, home: Home, config: Config) -> None:
        self._current = CurrentConfig(home)
        self._in_force = config
        self._said: str | None = None

    def __call__(self) -> Config:
        try:
            self._in_force = self._current()
            self._said = None
        except (HypError, OSError) as trouble:
            if self._said != str(trouble):
                self._said = str(trouble)
                log.error("the config is broken, so the old one stays in force: %s", trouble)
        return self._in_force
