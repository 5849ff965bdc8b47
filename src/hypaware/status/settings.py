"""The config: whether it can be used as it stands. Where it cannot, the rest is told by the defaults."""

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
    except ConfigError as trouble:
        why = reason_of(trouble)
        said = error("config_invalid", f"the config cannot be used: {why}", "hyp config validate")
        return Found(Settings(facts={**facts, "valid": False, "error": why}), (said,))
