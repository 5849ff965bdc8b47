"""The caller of a request, as its signed token describes it."""

from __future__ import annotations

from dataclasses import dataclass

TENANT = "default"


@dataclass(frozen=True)
class Caller:
    token_id: str
    """The bootstrap token that the caller enrolled with. Revoking it ends the caller too."""
    owner: str
    """The owner of that token. Tokens with the same label have the same owner."""
    gateway_id: str | None
    """None for a client of the published contract: only its rows name the gateway."""
    label: str | None = None
    tenant: str = TENANT

    @property
    def key(self) -> str:
        """The key under which the caller's rate limits are counted."""
        return self.gateway_id or self.owner
