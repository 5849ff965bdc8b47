"""Who we are to the server: a signed token, got with the user's bootstrap token or configured as it is.

    POST /v1/identity/bootstrap {"bootstrap_token", "gateway_id", "gateway_secret", "host"} → {"jwt", "expires_at"}
    POST /v1/identity/refresh   Bearer → the same

Renewed when less than a day is left, and once when the server refuses it; all streams share one renewal. Only the
server's answer says whether a token is good: a clock that runs wrong makes us renew at another time, nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from hypaware.export.sink import Busy, Denied, SinkSettings, Unreachable
from hypaware.export.sinks.forward import answers, tokens
from hypaware.export.sinks.forward.answers import Answer
from hypaware.export.sinks.forward.tokens import Bond, Signed

_DAY = 24 * 3600.0
# How long a server that gave no better token is left in peace.
_PAUSE = 600.0
_SHORTEST_USE = 60.0
# Shorter ones would tear holes into innocent words.
_SHORTEST_SECRET = 6


class Ask(Protocol):
    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer: ...


class Credentials:
    def __init__(
        self, settings: SinkSettings, address: str, host: str, ask: Ask, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._address, self._host = settings, address, host
        self._ask, self._clock = ask, clock
        self._held: Signed | None = None
        self._origin: str | None = None
        """The configured token that the held one came from."""
        self._not_before = 0.0
        self._lock = asyncio.Lock()
        self._secrets: set[str] = set()

    @property
    def secrets(self) -> frozenset[str]:
        """Everything that must not be shown."""
        return frozenset(self._secrets)

    async def bearer(self) -> str | None:
        """The token to send; None if the config names none."""
        if self._held and not self._is_due(self._held):
            return self._held.jwt
        async with self._lock:
            origin = self._configured()
            if origin is None:
                return None
            if self._held is None:
                self._held = self._found(origin) or await self._bootstrapped(origin)
            if self._is_due(self._held):
                await self._renew_early(self._held, origin)
            return self._held.jwt

    async def renewed(self, refused: str | None) -> str:
        """Another token after the server refused this one. Raises Denied if there is no better one."""
        async with self._lock:
            origin = self._configured()
            if origin is None:
                raise self._no_token()
            better = self._found(origin)
            # Another one is there already if a stream or a process was quicker, or if the user put in a new one.
            if better and better.jwt == refused:
                better = await self._refreshed(better)
            self._held = better or await self._bootstrapped(origin)
            return self._held.jwt

    def _configured(self) -> str | None:
        token = tokens.configured(self._settings)
        self._hide(token)
        return token

    def _found(self, origin: str) -> Signed | None:
        """What was kept for this configured token, else that token itself if it is a signed one."""
        self._origin = origin
        found = tokens.kept(self._settings.home, self._settings.name, self._bond(origin)) or tokens.signed(origin)
        self._hide(found.jwt if found else None)
        return found

    def _is_due(self, token: Signed) -> bool:
        now = self._clock()
        return token.expires_at - now < _DAY and now >= self._not_before

    async def _renew_early(self, token: Signed, origin: str) -> None:
        """The old token may still do; if it does not, the answer to the next request will say so."""
        self._not_before = self._clock() + _PAUSE
        with contextlib.suppress(Busy, Denied, Unreachable):
            self._held = await self._refreshed(token) or await self._bootstrapped(origin)

    async def _refreshed(self, token: Signed) -> Signed | None:
        """None: the server does not take this token for a new one."""
        answer = await self._ask("POST", "/v1/identity/refresh", {"Authorization": f"Bearer {token.jwt}"})
        if answer.is_taken:
            return await self._kept(answer)
        if answer.status >= 500 or answer.status == 429:
            raise answers.trouble(answer.without(self._secrets))
        return None

    async def _bootstrapped(self, origin: str) -> Signed:
        if tokens.signed(origin):
            raise self._refused("the signed token in its config is not valid (any more)")
        secret = await asyncio.to_thread(tokens.gateway_secret, self._settings.home)
        self._hide(secret)
        asked = {
            "bootstrap_token": origin,
            "gateway_id": self._settings.gateway_id,
            "gateway_secret": secret,
            "host": self._host,
        }
        headers = {"Content-Type": "application/json"}
        answer = await self._ask("POST", "/v1/identity/bootstrap", headers, orjson.dumps(asked))
        if not answer.is_taken:
            raise self._no_bootstrap(answer.without(self._secrets))
        return await self._kept(answer)

    def _no_bootstrap(self, answer: Answer) -> Exception:
        if answer.kind == "gateway_bound":
            return Denied(
                f"{self._address} knows another home by the id {self._settings.gateway_id}: it answered {answer.shown}",
                kind=answer.kind,
                repair="bring back delivery/gateway.secret of the home that delivered there first",
            )
        if answer.status in (400, 401, 403, 409, 413, 422):
            return self._refused(f"it answered {answer.shown}", kind=answer.kind)
        if answer.status == 404:
            return Denied(
                f"{self._address} has no /v1/identity/bootstrap: it does not look like a HypAware server",
                kind="no_such_server",
                repair=f"hyp config set sinks.{self._settings.name}.url <address>",
            )
        return answers.trouble(answer)

    async def _kept(self, answer: Answer) -> Signed:
        document = answer.document or {}
        jwt, ends = document.get("jwt"), tokens.as_moment(document.get("expires_at"))
        if not isinstance(jwt, str) or not tokens.is_token(jwt):
            raise Unreachable(f"{self._address} answered {answer.status} to a question for a token, without one")
        self._hide(jwt)
        now = self._clock()
        if ends is None:
            ends = says.expires_at if (says := tokens.signed(jwt)) else now
        # By our clock, should it differ from the server's.
        server_now = answers.moment(answer.headers.get("date", ""))
        token = Signed(jwt, max(0.0, ends + (now - server_now if server_now is not None else 0.0)))
        self._not_before = now + max(_SHORTEST_USE, (token.expires_at - now) / 2)
        assert self._origin
        try:
            await asyncio.to_thread(
                tokens.keep, self._settings.home, self._settings.name, self._bond(self._origin), token
            )
        except OSError as error:
            raise Denied(f"the server's token cannot be kept: {error.strerror}", kind="token_not_kept") from None
        return token

    def _bond(self, origin: str) -> Bond:
        return Bond(self._address, self._settings.gateway_id, tokens.hash_of(origin))

    def _hide(self, secret: str | None) -> None:
        if secret and len(secret) >= _SHORTEST_SECRET:
            self._secrets.add(secret)

    def _no_token(self) -> Denied:
        name = self._settings.name
        return Denied(
            f"{self._address} asks for a token, and the sink {name} has none: token_file is missing in its config",
            kind="token_missing",
            repair=f"hyp config set sinks.{name}.token_file <file with the token>",
        )

    def _refused(self, why: str, kind: str | None = None) -> Denied:
        name, options = self._settings.name, self._settings.options
        place = options.get("token_file") or f"the environment variable {options.get('token_env')}"
        return Denied(
            f"{self._address} refuses the token of the sink {name}: {why}",
            kind=kind or "token_refused",
            repair=f"put a token from `hyp server token create` into {place}",
        )
