"""Commands of the operator: bootstrap tokens (`hyp server token`) and gateways (`hyp server gateways`).

A bootstrap token is `hypb_` and 32 random bytes. It is shown once and stored only as its sha256; it is random enough
that a plain hash cannot be reversed.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.server.auth import TENANT, hash_token
from hypaware.state import gateways
from hypaware.state.gateways import BootstrapToken, GatewayRecord
from hypaware.state.home_opener import open_home

TOKEN_PREFIX = "hypb_"
_MAX_LABEL = 100


def create_token(home: Home, label: str | None = None, ttl_seconds: float | None = None) -> tuple[str, BootstrapToken]:
    """Create a token. Return its secret, which cannot be shown again, and its stored record."""
    if label is not None and (not label.strip() or len(label) > _MAX_LABEL or not label.isprintable()):
        raise UsageError(f"a label must be printable text of 1 to {_MAX_LABEL} characters")
    now = datetime.now(UTC)
    expires_at = (now + timedelta(seconds=ttl_seconds)).isoformat() if ttl_seconds is not None else None
    secret = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    token = BootstrapToken(f"tok_{secrets.token_hex(6)}", label, now.isoformat(), expires_at, None, None)
    with closing(open_home(home).store) as store, store.transaction() as connection:
        gateways.add_token(connection, token, hash_token(secret))
    return secret, token


def list_tokens(home: Home) -> list[BootstrapToken]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return gateways.list_tokens(connection)


def revoke_token(home: Home, id_or_label: str) -> list[str]:
    """Revoke the matching tokens and every gateway that enrolled with them. Return the tokens' ids."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        revoked = gateways.revoke_tokens(connection, id_or_label)
    if not revoked:
        raise HypError(
            f"no active token has the id or label {id_or_label!r}", kind="unknown_token", repair="hyp server token list"
        )
    return revoked


def token_as_json(token: BootstrapToken) -> dict[str, Any]:
    return {**asdict(token), "status": token.refusal(datetime.now(UTC)) or "ok"}


def list_gateways(home: Home) -> list[GatewayRecord]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return gateways.list_gateways(connection, TENANT)


def release_gateway(home: Home, gateway_id: str) -> None:
    """Release a gateway id, for a machine that lost its secret. The next machine that enrols under the id gets it."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        if not gateways.release_gateway(connection, TENANT, gateway_id):
            raise HypError(f"this server knows no gateway {gateway_id!r}", kind="unknown_gateway")
