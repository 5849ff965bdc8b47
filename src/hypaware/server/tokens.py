"""Bootstrap tokens, which an operator gives to a machine so that it can enrol, for `hyp server token`.

A token is `hypb_` and 32 random bytes. It is shown once and stored only as its sha256; it is random enough that a plain
hash cannot be reversed.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.state import tokens
from hypaware.state.tokens import Token

PREFIX = "hypb_"
_MAX_LABEL = 100


def create(home: Home, label: str | None = None, ttl_seconds: float | None = None) -> tuple[str, Token]:
    """Create a token. Return its secret, which cannot be shown again, and its stored record."""
    if label is not None and (not label.strip() or len(label) > _MAX_LABEL or not label.isprintable()):
        raise UsageError(f"a label must be printable text of 1 to {_MAX_LABEL} characters")
    now = datetime.now(UTC)
    expires_at = (now + timedelta(seconds=ttl_seconds)).isoformat() if ttl_seconds is not None else None
    secret = f"{PREFIX}{secrets.token_urlsafe(32)}"
    token = Token(f"tok_{secrets.token_hex(6)}", label, now.isoformat(), expires_at, None, None)
    with closing(open_home(home).store) as store, store.transaction() as connection:
        tokens.add(connection, token, hash_of(secret))
    return secret, token


def listed(home: Home) -> list[Token]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return tokens.all_tokens(connection)


def revoke(home: Home, id_or_label: str) -> list[str]:
    """Revoke the matching tokens and every gateway that enrolled with them. Return the tokens' ids."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        revoked = tokens.revoke(connection, id_or_label)
    if not revoked:
        raise HypError(
            f"no active token has the id or label {id_or_label!r}", kind="unknown_token", repair="hyp server token list"
        )
    return revoked


def as_json(token: Token) -> dict[str, Any]:
    return {**asdict(token), "status": token.refusal(datetime.now(UTC)) or "ok"}


def hash_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def owner_of(token: Token) -> str:
    return f"label:{token.label}" if token.label else f"token:{token.id}"
