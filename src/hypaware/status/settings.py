"""The config: whether it is valid. If not, the rest of the snapshot uses the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypaware import config as configuration
from hypaware.config import Config
from hypaware.errors import ConfigError
from hypaware.home import Home
from hypaware.status.diagnostic import Found, error, reason_of


@dataclass(frozen=True)
class Settings:
    config: Config = field(default_factory=Config)
    facts: dict[str, Any] = field(default_factory=dict)


def look(home: Home) -> Found[Settings]:
    facts = {"path": str(home.config), "exists": home.config.exists(), "valid": True, "error": None}
    try:
        return Found(Settings(configuration.load(home), facts))
    except ConfigError as exception:
        why = reason_of(exception)
        diagnostic = error("config_invalid", f"the config is invalid: {why}", "hyp config validate")
        return Found(Settings(facts={**facts, "valid": False, "error": why}), (diagnostic,))
