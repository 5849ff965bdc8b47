"""Signed tokens, and the files behind them: `server/signing.key` (32 random bytes) and `server/server.id`.

Both files are created once. If the key is lost, all signed tokens become invalid and gateways enrol again. The server
id lets gateways recognise the same server even after its state was lost.

A signed token is a JWT (HS256): `sub` is the gateway, or `""` for a client without a gateway id; `tid` is the bootstrap
token it enrolled with, `own` that token's owner, `lbl` its label; `jti`, `iat`, `exp`.
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

_after_key = faults.point("server.keep.after-write", "the server's signing key or id is durable")

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

    def verify(self, token: str) -> Caller | None:
        """Return the caller that the token was signed for, or None if the token is not ours or has expired."""
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
    key = _read_or_create(folder(home) / "signing.key", lambda: secrets.token_bytes(_KEY_BYTES))
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{folder(home) / 'signing.key'} is damaged: it does not hold {_KEY_BYTES} bytes. Remove it: the server "
            "then creates a new key, and gateways enrol again automatically",
            kind="signing_key_damaged",
            repair=f"rm {shlex.quote(str(folder(home) / 'signing.key'))}",
        )
    return key


def has_server_id(home: Home) -> bool:
    return (folder(home) / "server.id").is_file()


def server_id(home: Home) -> str:
    raw = _read_or_create(folder(home) / "server.id", lambda: f"srv-{secrets.token_hex(8)}\n".encode())
    return raw.decode().strip()


def _read_or_create(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the file's contents, creating it if it is missing. The caller holds the server's lock."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        durable.make_dir(path.parent)
        content = make()
        durable.write_file(path, content)
        _after_key()
        return content
