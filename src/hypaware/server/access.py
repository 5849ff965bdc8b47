"""Who may come in: bootstrap tokens are traded for signed ones, signed ones are read, revoked ones are turned away.

Whose id a gateway's is:
- A client that says its id and a secret has that id if nobody had it before, or if it was enrolled with the same
  secret. A new bootstrap token changes nothing: the ledger finds what the gateway delivered before.
- A client of the published contract says neither. The rows of each of its batches say whose they are; an id that
  nobody had before then belongs to the *owner* of its bootstrap token: the token's label, or the token itself if it
  has none. A token that replaces another one is given the same label.

An expired bootstrap token lets nobody new in; gateways that came with it stay, and renew. A revoked one ends them too.
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

_LOOK_EVERY = 1.0
_MAX_SECRET = 1_000


class Access:
    def __init__(
        self,
        store: Store,
        signer: Signer,
        *,
        look_every: float = _LOOK_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._signer = signer
        self._look_every = look_every
        self._clock = clock
        self._revoked: frozenset[str] = frozenset()
        self._looked_at = -float("inf")

    async def caller(self, request: web.Request) -> Caller:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        found = self._signer.caller(token.strip()) if scheme.lower() == "bearer" and token.isascii() else None
        if found is None or found.token_id in await self._revoked_now():
            raise Problem(401, "unauthorized")
        headers.own_gateway(request.headers, found.gateway_id)
        return found

    async def enrol(self, asked: Mapping[str, Any]) -> Signed:
        return await asyncio.to_thread(self._enrol, asked)

    async def renew(self, caller: Caller) -> Signed:
        await asyncio.to_thread(self._used, caller.token_id)
        return self._signer.sign(caller)

    def _enrol(self, asked: Mapping[str, Any]) -> Signed:
        token = asked.get("bootstrap_token")
        if not isinstance(token, str):
            raise bad_request("bad_request", "bootstrap_token is missing")
        gateway_id, secret, host = (_text(asked, name) for name in ("gateway_id", "gateway_secret", "host"))
        if (gateway_id is None) != (secret is None):
            raise bad_request("bad_request", "gateway_id and gateway_secret come together")
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

    def _used(self, token_id: str) -> None:
        with self._store.transaction() as connection:
            tokens.used(connection, token_id)

    async def _revoked_now(self) -> frozenset[str]:
        """Looked up again when the last look is a moment old: another process revokes them."""
        if self._clock() - self._looked_at >= self._look_every:
            self._revoked = await asyncio.to_thread(self._look)
            self._looked_at = self._clock()
        return self._revoked

    def _look(self) -> frozenset[str]:
        with self._store.reading() as connection:
            return tokens.revoked_ids(connection)


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request("bad_request", f"{name} is not text")
    if name == "gateway_secret":
        if not 16 <= len(value) <= _MAX_SECRET or not value.isprintable():
            raise bad_request("bad_request", f"{name} is not printable text of 16 to {_MAX_SECRET} characters")
        return value
    return headers.checked(name, value, kind="bad_request")
