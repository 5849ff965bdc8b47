"""Who is asking, as a signed token tells."""

from __future__ import annotations

from dataclasses import dataclass

TENANT = "default"


@dataclass(frozen=True)
class Caller:
    token_id: str
    """The bootstrap token that it came with; revoked, it ends the caller too."""
    owner: str
    """Whom that token was made for: the next token with the same label has the same owner."""
    gateway_id: str | None
    """None for a client of the published contract, which does not say who it is: its rows do."""
    label: str | None = None
    tenant: str = TENANT

    @property
    def key(self) -> str:
        """What its limits are counted under."""
        return self.gateway_id or self.owner
