"""The sender of a request, from its headers: the client, its version, and how it was started."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypaware.capture.decoded import Decoded

_PRODUCT = re.compile(r"([A-Za-z0-9_.-]{1,60})/([0-9A-Za-z.+-]{1,40})(?: \(([^)]{0,80})\))?")
_NAMES = {"claude-cli": "claude", "codex_exec": "codex", "codex_cli_rs": "codex", "codex_vscode": "codex"}


@dataclass(frozen=True)
class Sender:
    name: str | None
    """The client's name in the table; None if it is unknown."""
    version: str | None
    remarks: tuple[str, ...] = ()
    """The comment in parentheses: Claude Code sends `(external, sdk-cli)`."""


def sender_of(decoded: Decoded) -> Sender:
    found = _PRODUCT.match(decoded.request_headers.get("user-agent", ""))
    if found is None:
        return Sender(decoded.client_name, None)
    product, version, remarks = found.groups()
    known = _NAMES.get(product) or ("codex" if product.startswith("codex") else None)
    name = decoded.client_name or known
    # The version is that of the sending program; it does not apply to a client that only uses that program.
    return Sender(name, version if known is not None else None, tuple(re.split(r",\s*", remarks)) if remarks else ())
