"""What the server keeps for itself: `server/signing.key` (32 random bytes) and `server/server.id`, and tokens it signs.

Both are made once. Without its key the server's tokens are void, and gateways enrol again; its id tells them that they
still talk to the same one, also after its state was lost.

A token is a JWT (HS256): `sub` the gateway, or `""` for a client that does not say which it is; `tid` the bootstrap
token it came with, `own` that token's owner, `lbl` its label; `jti`, `iat`, `exp`.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jwt

from hypaware import durable, faults
from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.server.callers import Caller

_after_key = faults.point("server.keep.after-write", "something that the server keeps for itself is made, for good")

LIFETIME_SECONDS = 30 * 86_400
_ALGORITHM = "HS256"
_REQUIRED = ["sub", "tid", "own", "ten", "exp", "iat", "jti"]
_KEY_BYTES = 32


@dataclass(frozen=True)
class Signed:
    jwt: str
    expires_at: int
    """Seconds since the epoch."""


class Signer:
    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock

    def sign(self, caller: Caller) -> Signed:
        now = int(self._clock())
        expires_at = now + LIFETIME_SECONDS
        claims = {
            "sub": caller.gateway_id or "",
            "ten": caller.tenant,
            "tid": caller.token_id,
            "own": caller.owner,
            "lbl": caller.label,
            "jti": secrets.token_hex(8),
            "iat": now,
            "exp": expires_at,
        }
        return Signed(jwt.encode(claims, self._key, _ALGORITHM), expires_at)

    def caller(self, token: str) -> Caller | None:
        """Who the token was signed for; None if it was not signed here, or has expired."""
        try:
            claims = jwt.decode(
                token,
                self._key,
                [_ALGORITHM],
                options={"require": _REQUIRED, "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            return None
        if claims["exp"] <= self._clock():
            return None
        return Caller(claims["tid"], claims["own"], claims["sub"] or None, claims.get("lbl"), claims["ten"])


def folder(home: Home) -> Path:
    return home.root / "server"


def signing_key(home: Home) -> bytes:
    held = _kept(folder(home) / "signing.key", lambda: secrets.token_bytes(_KEY_BYTES))
    if len(held) != _KEY_BYTES:
        raise StateError(
            f"{folder(home) / 'signing.key'} is damaged: it does not hold {_KEY_BYTES} bytes. Without it a new one is "
            "made, and gateways enrol again by themselves",
            kind="signing_key_damaged",
            repair=f"rm {shlex.quote(str(folder(home) / 'signing.key'))}",
        )
    return held


def has_server_id(home: Home) -> bool:
    return (folder(home) / "server.id").is_file()


def server_id(home: Home) -> str:
    return _kept(folder(home) / "server.id", lambda: f"srv-{secrets.token_hex(8)}\n".encode()).decode().strip()


def _kept(path: Path, make: Callable[[], bytes]) -> bytes:
    """Only the one server of a home comes here, under its lock."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        durable.make_dir(path.parent)
        held = make()
        durable.write_file(path, held)
        _after_key()
        return held
