"""A recorded client, registered by an entry point in the group `hypaware.clients`."""

from __future__ import annotations

from dataclasses import dataclass

from hypaware.backfill.provider import Provider
from hypaware.clients.attach import Settings


@dataclass(frozen=True)
class Client:
    name: str
    about: str
    backfill: Provider | None = None
    """Imports its history, if it keeps any."""
    settings: Settings | None = None
    """Attaches it to the gateway, if it can be attached."""
