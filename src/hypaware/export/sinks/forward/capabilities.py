"""Read a server's extensions of the published contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypaware.export.sink import Limits

CONTRACT = Limits(rows=5_000, bytes=4 << 20)


@dataclass(frozen=True)
class Capabilities:
    server_id: str | None = None
    extensions: frozenset[str] = frozenset()
    encodings: frozenset[str] = frozenset()
    limits: Limits = CONTRACT


PLAIN = Capabilities()


def read(document: dict[str, Any] | None) -> Capabilities:
    """Parse the response of `GET /v1/capabilities`.

        {"server", "server_id", "api": 1, "extensions": […], "encodings": […], "limits": {…}}

    Any other document, or an unknown `api`, means a plain server: no extension is used, which is always safe. A field
    of the wrong type counts as absent.
    """
    if document is None or document.get("api") != 1 or not isinstance(document.get("extensions"), list):
        return PLAIN
    server_id, limits = document.get("server_id"), document.get("limits")
    announced = limits if isinstance(limits, dict) else {}
    return Capabilities(
        server_id=server_id if isinstance(server_id, str) and server_id else None,
        extensions=_names(document["extensions"]),
        encodings=_names(document.get("encodings")),
        limits=Limits(
            rows=_least(CONTRACT.rows, announced.get("max_rows")),
            bytes=_least(CONTRACT.bytes, announced.get("max_body_bytes")),
        ),
    )


def _names(value: Any) -> frozenset[str]:
    return frozenset(item for item in value if isinstance(item, str)) if isinstance(value, list) else frozenset()


def _least(ours: int, theirs: Any) -> int:
    return min(ours, theirs) if type(theirs) is int and theirs > 0 else ours
