"""The server's current config, read again when the file changes. An invalid config leaves the previous one in force."""

from __future__ import annotations

from hypaware.config import Config
from hypaware.config.current import CurrentConfig
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.server.trouble import log


class Settings:
    """Returns the current config when called, from any thread."""

    def __init__(self, home: Home, config: Config) -> None:
        self._file = CurrentConfig(home)
        self._config = config
        self._last_error: str | None = None

    def __call__(self) -> Config:
        try:
            self._config = self._file()
            self._last_error = None
        except (HypError, OSError) as error:
            if self._last_error != str(error):
                self._last_error = str(error)
                log.error("the config is invalid; the previous one stays in force: %s", error)
        return self._config
