"""Where a client reaches the gateway, and what to say when nobody answers there."""

from __future__ import annotations

from hypaware.capture import handover
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.listen_address import free_beside


def gateway_url(listen: str) -> str:
    """From `gateway.listen`; who listens everywhere is called at home. NotReady where each start has another port."""
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        raise NotReady(
            f"gateway.listen is {listen}, a new port at each start: a client needs one that stays. Nothing was written",
            kind="gateway_address",
            repair=f"hyp config set gateway.listen {free_beside(listen)}",
        )
    return f"http://127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "localhost") else f"http://{listen}"


def not_answering(home: Home, listen: str, reason: str | None = None) -> NotReady:
    """`reason` is what the gateway itself says, where it does."""
    why = reason or f"another program may have taken it (the log is {handover.log_path(home)})"
    return NotReady(
        f"no gateway of this home answers at {listen}: {why}. Nothing was written",
        kind="gateway_address",
        repair=f"hyp config set gateway.listen {free_beside(listen)}",
    )
