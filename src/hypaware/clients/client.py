"""What a recorded client is to the rest: registered by an entry point in the group `hypaware.clients`."""

from __future__ import annotations

from dataclasses import dataclass

from hypaware.backfill.provider import Provider
from hypaware.clients.attach import Settings


@dataclass(frozen=True)
class Client:
    name: str
    about: str
    backfill: Provider | None = None
    """How its history is imported, if it keeps any."""
    settings: Settings | None = None
    """How it is pointed at the gateway, if it can be."""
