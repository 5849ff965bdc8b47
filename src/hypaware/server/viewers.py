"""Who looks at the server's page: the person that a viewer token was made for, or that a proxy names.

A viewer token is exchanged for a cookie: a JWT (HS256) with `tid`, the id of the token, and `exp`, signed with a key
that is derived from the server's. So the cookie says who the person is and can do nothing else, the server keeps no
list of sign-ins, and a revoked or expired token ends all of them within a second.

A proxy that authenticates names the person in a header. The header is believed only if the connection comes from an
address of the proxy; from any other it is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import jwt
from aiohttp import web

from hypaware.server import auth, http
from hypaware.server.http import HttpProblem
from hypaware.state import ledger
from hypaware.state.ledger import ServerToken
from hypaware.state.store import StateStore

SIGN_IN_SECONDS = 7 * 86_400
_ALGORITHM = "HS256"
_REFRESH_SECONDS = 1.0
_MAX_TOKEN = 200
Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Viewer:
    name: str
    """The label of the token or its id; or what the proxy says."""
    token_id: str | None
    """None if a proxy has authenticated the person."""


class ViewerTokens:
    """Exchanges viewer tokens for cookies, and checks cookies."""

    def __init__(
        self,
        store: StateStore,
        server_key: bytes,
        *,
        refresh_seconds: float = _REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._key = hmac.digest(server_key, b"hypaware page", sha256)
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._tokens: dict[str, ServerToken] = {}
        self._refreshed_at = -float("inf")

    async def sign_in(self, token: str) -> str | None:
        """Return a cookie for a viewer token, or None if the token is not valid."""
        found = await asyncio.to_thread(self._find_and_touch, token) if len(token) <= _MAX_TOKEN else None
        if found is None:
            return None
        now = int(self._clock())
        expires = now + SIGN_IN_SECONDS
        if found.expires_at is not None:
            expires = min(expires, int(datetime.fromisoformat(found.expires_at).timestamp()))
        return jwt.encode({"tid": found.id, "iat": now, "exp": expires}, self._key, _ALGORITHM)

    async def find_viewer(self, cookie: str | None) -> Viewer | None:
        claims = self._verify(cookie) if cookie else None
        if claims is None:
            return None
        token = (await self._read_tokens()).get(claims["tid"])
        if token is None or self._refuses(token):
            return None
        return Viewer(token.label or token.id, token.id)

    def _verify(self, cookie: str) -> dict[str, Any] | None:
        options = {"require": ["tid", "exp"], "verify_exp": False, "verify_iat": False}
        try:
            claims: dict[str, Any] = jwt.decode(cookie, self._key, [_ALGORITHM], options=options)  # type: ignore[arg-type]
        except (jwt.InvalidTokenError, ValueError):
            return None
        return claims if claims["exp"] > self._clock() else None

    def _refuses(self, token: ServerToken) -> bool:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return token.use != "view" or token.refusal(now) is not None

    def _find_and_touch(self, token: str) -> ServerToken | None:
        # A guess must not take the write lock, which batches need.
        with self._store.reading() as connection:
            found = ledger.find_token(connection, auth.hash_token(token))
        if found is None or self._refuses(found):
            return None
        with self._store.transaction() as connection:
            ledger.touch_token(connection, found.id)
        self._refreshed_at = -float("inf")
        return found

    async def _read_tokens(self) -> dict[str, ServerToken]:
        """Return all tokens by id, read again after a moment, because another process revokes them."""

        def read() -> dict[str, ServerToken]:
            with self._store.reading() as connection:
                return {each.id: each for each in ledger.list_tokens(connection)}

        now = time.monotonic()
        if now - self._refreshed_at >= self._refresh_seconds:
            self._tokens = await asyncio.to_thread(read)
            self._refreshed_at = now
        return self._tokens


@dataclass(frozen=True)
class TrustedProxy:
    networks: tuple[Network, ...] = ()
    user_header: str | None = None
    """The header that names the person; None if the proxy only adds TLS."""

    def is_peer(self, request: web.Request) -> bool:
        """Return whether the connection comes from the proxy."""
        address = peer_address(request)
        return address is not None and any(address in each for each in self.networks)

    def find_viewer(self, request: web.Request) -> Viewer | None:
        """Return the person that the proxy names. Raise HttpProblem if the header is forged or not a name."""
        given = request.headers.getall(self.user_header, []) if self.user_header else []
        if not given:
            return None
        if not self.is_peer(request):
            raise HttpProblem(403, "forbidden", reason=f"only the proxy may send {self.user_header}")
        if len(given) > 1:
            raise HttpProblem(400, "bad_header", reason=f"{self.user_header} was sent more than once")
        name = _decode_name(given[0])
        if not name:
            return None
        try:
            return Viewer(http.check_name(self.user_header or "", name), None)
        except HttpProblem:
            raise HttpProblem(400, "bad_header", reason=f"{self.user_header} is not a printable name") from None


def _decode_name(given: str) -> str:
    """Return the name in a header, which is UTF-8 or Latin-1. Bytes that are not UTF-8 arrive as surrogates."""
    raw = given.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        return raw.decode("latin-1").strip()


def peer_address(request: web.Request) -> Any:
    """Return the address that the connection comes from, as the system says; None if it has none."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not isinstance(peer, tuple):
        return None
    address = ip_address(str(peer[0]).partition("%")[0])
    # A socket that listens on [::] shows addresses of IPv4 as ::ffff:….
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
