"""Authentication: exchange bootstrap tokens for signed tokens, verify signed tokens, reject revoked ones.

How a gateway id is assigned:
- A client that sends its id and a secret gets that id if it is unused, or if it was enrolled with the same secret. A
  new bootstrap token changes nothing: the ledger still finds the gateway's earlier deliveries.
- A client of the published contract sends neither, and reads its id from the token. Its installations may all have the
  same name, so each enrolment gets a new id, and the server stamps its rows with that id.

An expired bootstrap token enrols no new gateway, but gateways that enrolled with it stay and can renew their signed
tokens. A revoked bootstrap token ends those gateways too.

A signed token is a JWT (HS256): `sub` is the gateway, `stp` is true if its rows are stamped with it; `tid` is the
bootstrap token it enrolled with, `own` that token's owner (its label, or the token itself), `lbl` its label; `jti`,
`iat`, `exp`. It is signed with `server/signing.key` (32 random bytes). If the key is lost, all signed tokens become
invalid and gateways enrol again. `server/server.id` lets gateways recognise the same server even after its state was
lost. Both files are created once. All servers of a shared lake are the same server for its gateways: its id and key are
in the state.

The operator's commands (`hyp server token`, `hyp server gateways`) are here too. A bootstrap token is `hypb_` and 32
random bytes. It is shown once and stored only as its sha256; it is random enough that a plain hash cannot be reversed.
A viewer token, `hypv_`, is kept in the same way. With it people sign in to the page (`hypaware.server.viewers`); it
enrols nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jwt
from aiohttp import web

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.errors import HypError, StateError, UsageError
from hypaware.home import Home, durable_files
from hypaware.home.identity import is_member_id
from hypaware.server import http
from hypaware.server.http import HttpProblem, bad_request
from hypaware.state import ledger
from hypaware.state.home_opener import open_home
from hypaware.state.ledger import GatewayClaim, GatewayRecord, ServerToken
from hypaware.state.schema import get_meta, set_meta
from hypaware.state.store import StateStore

_after_key = faults.crash_point("server.keep.after-write", "the server's signing key or id is durable")

TENANT = ledger.DEFAULT_TENANT
LIFETIME_SECONDS = 30 * 86_400
_ALGORITHM = "HS256"
_REQUIRED = ["sub", "tid", "own", "ten", "exp", "iat", "jti"]
_KEY_BYTES = 32
_REFRESH_SECONDS = 1.0
_MAX_SECRET = 1_000
TOKEN_PREFIX = "hypb_"
VIEWER_PREFIX = "hypv_"
_MAX_LABEL = 100


@dataclass(frozen=True)
class Caller:
    token_id: str
    """The bootstrap token that the caller enrolled with. Revoking it ends the caller too."""
    owner: str
    """The owner of that token. Tokens with the same label have the same owner."""
    gateway_id: str
    label: str | None = None
    tenant: str = TENANT
    is_stamped: bool = False
    """Whether the server issued the gateway id, and replaces the one in the rows by it."""


@dataclass(frozen=True)
class SignedToken:
    jwt: str
    expires_at: int
    """Seconds since the epoch."""


class Authenticator:
    def __init__(
        self,
        store: StateStore,
        signer: TokenSigner,
        *,
        refresh_seconds: float = _REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._signer = signer
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._revoked: frozenset[str] = frozenset()
        self._refreshed_at = -float("inf")

    async def authenticate(self, request: web.Request) -> Caller:
        """Return the caller that the request's token was signed for. Raise Problem 401 if there is no valid token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        caller = self._signer.verify(token.strip()) if scheme.lower() == "bearer" and token.isascii() else None
        if caller is None or caller.token_id in await self._revoked_ids():
            raise HttpProblem(401, "unauthorized")
        named = http.read_name(request.headers, "X-Hyp-Gateway")
        if named is not None and named != caller.gateway_id:
            raise HttpProblem(403, "gateway_mismatch")
        return caller

    async def renew(self, caller: Caller) -> SignedToken:
        def mark_used() -> None:
            with self._store.transaction() as connection:
                ledger.touch_token(connection, caller.token_id)

        await asyncio.to_thread(mark_used)
        return self._signer.sign(caller)

    def enrol(self, body: Mapping[str, Any]) -> SignedToken:
        token = body.get("bootstrap_token")
        if not isinstance(token, str):
            raise bad_request("bad_request", "bootstrap_token is missing")
        gateway_id, secret, host = (_text_field(body, name) for name in ("gateway_id", "gateway_secret", "host"))
        if (gateway_id is None) != (secret is None):
            raise bad_request("bad_request", "gateway_id and gateway_secret must be sent together")
        if gateway_id is not None and is_member_id(gateway_id):
            raise bad_request("bad_request", "gateway_id is that of a machine which shares the lake of another gateway")
        with self._store.transaction() as connection:
            found = ledger.find_token(connection, hash_token(token))
            if found is None or found.use != "enrol" or found.refusal(datetime.now(UTC)):
                raise HttpProblem(401, "unauthorized")
            ledger.touch_token(connection, found.id)
            owner = f"label:{found.label}" if found.label else f"token:{found.id}"
            bound = sha256(secret.encode()).hexdigest() if secret else None
            caller = Caller(
                found.id, owner, gateway_id or f"gw-{secrets.token_hex(8)}", found.label, is_stamped=gateway_id is None
            )
            claim = GatewayClaim(TENANT, caller.gateway_id, owner, bound, found.label, host)
            if not ledger.bind_gateway(connection, claim):
                raise HttpProblem(403, "gateway_bound")
        return self._signer.sign(caller)

    async def _revoked_ids(self) -> frozenset[str]:
        """Return the revoked tokens, read again after a moment, because another process revokes them."""

        def read() -> frozenset[str]:
            with self._store.reading() as connection:
                return ledger.revoked_token_ids(connection)

        if self._clock() - self._refreshed_at >= self._refresh_seconds:
            self._revoked = await asyncio.to_thread(read)
            self._refreshed_at = self._clock()
        return self._revoked


def _text_field(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request("bad_request", f"{name} is not text")
    if name == "gateway_secret":
        if not 16 <= len(value) <= _MAX_SECRET or not value.isprintable():
            raise bad_request("bad_request", f"{name} is not printable text of 16 to {_MAX_SECRET} characters")
        return value
    return http.check_name(name, value, kind="bad_request")


def hash_token(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenSigner:
    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock

    def sign(self, caller: Caller) -> SignedToken:
        now = int(self._clock())
        expires_at = now + LIFETIME_SECONDS
        claims = {
            "sub": caller.gateway_id,
            "stp": caller.is_stamped,
            "ten": caller.tenant,
            "tid": caller.token_id,
            "own": caller.owner,
            "lbl": caller.label,
            "jti": secrets.token_hex(8),
            "iat": now,
            "exp": expires_at,
        }
        return SignedToken(jwt.encode(claims, self._key, _ALGORITHM), expires_at)

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
        # Earlier versions signed tokens without a gateway. Such a client enrols again.
        if claims["exp"] <= self._clock() or not claims["sub"]:
            return None
        return Caller(
            claims["tid"], claims["own"], claims["sub"], claims.get("lbl"), claims["ten"], claims.get("stp") is True
        )


def server_folder(home: Home) -> Path:
    return home.root / "server"


def signing_key(home: Home, store: StateStore) -> bytes:
    if find_shared_lake(home) is not None:
        return bytes.fromhex(_read_or_enter(store, "server_signing_key", lambda: secrets.token_hex(_KEY_BYTES)))
    path = server_folder(home) / "signing.key"
    key = _read_or_create(path, lambda: secrets.token_bytes(_KEY_BYTES))
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{path} is damaged: it does not hold {_KEY_BYTES} bytes. Remove it; the server then creates a new key, "
            "and gateways enrol again automatically",
            kind="signing_key_damaged",
            repair=f"rm {shlex.quote(str(path))}",
        )
    return key


def server_id(home: Home, store: StateStore) -> str:
    if find_shared_lake(home) is not None:
        return _read_or_enter(store, "server_id", _new_server_id)
    raw = _read_or_create(server_folder(home) / "server.id", lambda: f"{_new_server_id()}\n".encode())
    return raw.decode().strip()


def _new_server_id() -> str:
    return f"srv-{secrets.token_hex(8)}"


def _read_or_enter(store: StateStore, key: str, make: Callable[[], str]) -> str:
    """Return a value of the state, which the first server of the lake enters."""
    with store.reading() as connection:
        found = get_meta(connection, key)
    if found is not None:
        return found
    with store.transaction() as connection:
        found = get_meta(connection, key)
        if found is None:
            found = make()
            set_meta(connection, key, found)
    _after_key()
    return found


def _read_or_create(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the file's contents, creating it if it is missing. The caller holds the server's lock."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        durable_files.make_dir(path.parent)
        content = make()
        durable_files.write_atomic(path, content)
        _after_key()
        return content


def create_token(
    home: Home, label: str | None = None, ttl_seconds: float | None = None, *, use: Literal["enrol", "view"] = "enrol"
) -> tuple[str, ServerToken]:
    """Create a token. Return its secret, which cannot be shown again, and its stored record."""
    if label is not None and (not label.strip() or len(label) > _MAX_LABEL or not label.isprintable()):
        raise UsageError(f"a label must be printable text of 1 to {_MAX_LABEL} characters")
    now = datetime.now(UTC)
    expires_at = (now + timedelta(seconds=ttl_seconds)).isoformat() if ttl_seconds is not None else None
    secret = f"{VIEWER_PREFIX if use == 'view' else TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    token = ServerToken(f"tok_{secrets.token_hex(6)}", label, now.isoformat(), expires_at, None, None, use)
    with closing(open_home(home).store) as store, store.transaction() as connection:
        ledger.add_token(connection, token, hash_token(secret))
    return secret, token


def list_tokens(home: Home) -> list[ServerToken]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return ledger.list_tokens(connection)


def revoke_token(home: Home, id_or_label: str) -> list[str]:
    """Revoke the matching tokens and every gateway that enrolled with them. Return the tokens' ids."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        revoked = ledger.revoke_tokens(connection, id_or_label)
    if not revoked:
        raise HypError(
            f"no active token has the id or label {id_or_label!r}", kind="unknown_token", repair="hyp server token list"
        )
    return revoked


def token_as_json(token: ServerToken) -> dict[str, Any]:
    return {**asdict(token), "status": token.refusal(datetime.now(UTC)) or "ok"}


def list_gateways(home: Home) -> list[GatewayRecord]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return ledger.list_gateways(connection, TENANT)


def release_gateway(home: Home, gateway_id: str) -> None:
    """Release a gateway id, for a machine that lost its secret. The next machine that enrols under the id gets it."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        if not ledger.release_gateway(connection, TENANT, gateway_id):
            raise HypError(f"this server knows no gateway {gateway_id!r}", kind="unknown_gateway")
