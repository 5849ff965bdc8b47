"""The gateway's address for clients, and the error for a gateway that does not answer."""

from __future__ import annotations

from hypaware.capture import handover
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.listen_address import free_beside


def gateway_url(listen: str) -> str:
    """Return the URL for `gateway.listen`; a wildcard becomes 127.0.0.1. Raise NotReady without a fixed port."""
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        raise NotReady(
            f"gateway.listen is {listen}, which has no fixed port, but a client needs one. Nothing was written",
            kind="gateway_address",
            repair=f"hyp config set gateway.listen {free_beside(listen)}",
        )
    return f"http://127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "localhost") else f"http://{listen}"


def not_answering(home: Home, listen: str, reason: str | None = None) -> NotReady:
    """Return the error; `reason` is the gateway's own explanation, if it has one."""
    explanation = reason or f"another program may use the port (see {handover.log_path(home)})"
    return NotReady(
        f"this home's gateway does not answer at {listen}: {explanation}. Nothing was written",
        kind="gateway_address",
        repair=f"hyp config set gateway.listen {free_beside(listen)}",
    )
