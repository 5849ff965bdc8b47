"""Authentication: exchange bootstrap tokens for signed tokens, verify signed tokens, reject revoked ones.

How a gateway id is assigned:
- A client that sends its id and a secret gets that id if it is unused, or if it was enrolled with the same secret. A
  new bootstrap token changes nothing: the ledger still finds the gateway's earlier deliveries.
- A client of the published contract sends neither. The rows of its batches name the gateway id; an unused id then
  belongs to the *owner* of the bootstrap token: the token's label, or the token itself if it has no label. To replace a
  token, create the new one with the same label.

An expired bootstrap token enrols no new gateway, but gateways that enrolled with it stay and can renew their signed
tokens. A revoked bootstrap token ends those gateways too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from aiohttp import web

from hypaware.server import headers
from hypaware.server.callers import TENANT, Caller
from hypaware.server.problem import Problem, bad_request
from hypaware.server.signing import Signed, Signer
from hypaware.server.tokens import hash_of, owner_of
from hypaware.state import gateways, tokens
from hypaware.state.gateways import Claim
from hypaware.state.store import Store

_REFRESH_SECONDS = 1.0
_MAX_SECRET = 1_000


class Access:
    def __init__(
        self,
        store: Store,
        signer: Signer,
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
            raise Problem(401, "unauthorized")
        headers.own_gateway(request.headers, caller.gateway_id)
        return caller

    async def enrol(self, body: Mapping[str, Any]) -> Signed:
        return await asyncio.to_thread(self._enrol, body)

    async def renew(self, caller: Caller) -> Signed:
        await asyncio.to_thread(self._mark_used, caller.token_id)
        return self._signer.sign(caller)

    def _enrol(self, body: Mapping[str, Any]) -> Signed:
        token = body.get("bootstrap_token")
        if not isinstance(token, str):
            raise bad_request("bad_request", "bootstrap_token is missing")
        gateway_id, secret, host = (_text(body, name) for name in ("gateway_id", "gateway_secret", "host"))
        if (gateway_id is None) != (secret is None):
            raise bad_request("bad_request", "gateway_id and gateway_secret must be sent together")
        with self._store.transaction() as connection:
            found = tokens.find(connection, hash_of(token))
            if found is None or found.refusal(datetime.now(UTC)):
                raise Problem(401, "unauthorized")
            tokens.used(connection, found.id)
            owner = owner_of(found)
            if gateway_id is not None and secret is not None:
                bound = sha256(secret.encode()).hexdigest()
                if not gateways.bind(connection, Claim(TENANT, gateway_id, owner, bound, found.label, host)):
                    raise Problem(403, "gateway_bound")
        return self._signer.sign(Caller(found.id, owner, gateway_id, found.label))

    def _mark_used(self, token_id: str) -> None:
        with self._store.transaction() as connection:
            tokens.used(connection, token_id)

    async def _revoked_ids(self) -> frozenset[str]:
        """Return the revoked tokens, read again after a moment, because another process revokes them."""
        if self._clock() - self._refreshed_at >= self._refresh_seconds:
            self._revoked = await asyncio.to_thread(self._read_revoked)
            self._refreshed_at = self._clock()
        return self._revoked

    def _read_revoked(self) -> frozenset[str]:
        with self._store.reading() as connection:
            return tokens.revoked_ids(connection)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request("bad_request", f"{name} is not text")
    if name == "gateway_secret":
        if not 16 <= len(value) <= _MAX_SECRET or not value.isprintable():
            raise bad_request("bad_request", f"{name} is not printable text of 16 to {_MAX_SECRET} characters")
        return value
    return headers.checked(name, value, kind="bad_request")
