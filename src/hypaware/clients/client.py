"""What a recorded client is to the rest: registered by an entry point in the group `hypaware.clients`."""

from __future__ import annotations

from dataclasses import dataclass

from hypaware.backfill.provider import Provider


@dataclass(frozen=True)
class Client:
    name: str
    about: str
    backfill: Provider | None = None
    """How its history is imported, if it keeps any."""
