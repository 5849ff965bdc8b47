"""Authenticate to the server with a signed token, which is configured or obtained with a bootstrap token.

    POST /v1/identity/bootstrap {"bootstrap_token", "gateway_id", "gateway_secret", "host"} → {"jwt", "expires_at"}
    POST /v1/identity/refresh   Bearer → the same

A token is renewed when less than a day is left, and once when the server rejects it; all streams share one renewal.
Only the server decides whether a token is valid: with a wrong local clock it is only renewed at another time.
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
# How long to wait before asking again a server that issued no better token.
_PAUSE = 600.0
_SHORTEST_USE = 60.0
# Redacting shorter secrets would damage ordinary words.
_SHORTEST_SECRET = 6


class Ask(Protocol):
    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer: ...


class Credentials:
    def __init__(
        self, settings: SinkSettings, address: str, host: str, request: Ask, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._address, self._host = settings, address, host
        self._request, self._clock = request, clock
        self._current: Signed | None = None
        self._origin: str | None = None
        """The configured token that the current one was obtained with."""
        self._not_before = 0.0
        self._lock = asyncio.Lock()
        self._secrets: set[str] = set()

    @property
    def secrets(self) -> frozenset[str]:
        """Everything that must not appear in a message."""
        return frozenset(self._secrets)

    async def get_token(self) -> str | None:
        """Return the token to send; None if the config has none."""
        if self._current and not self._is_due(self._current):
            return self._current.jwt
        async with self._lock:
            origin = self._read_configured()
            if origin is None:
                return None
            if self._current is None:
                self._current = self._load(origin) or await self._bootstrap(origin)
            if self._is_due(self._current):
                await self._renew_early(self._current, origin)
            return self._current.jwt

    async def replace_token(self, rejected: str | None) -> str:
        """Return another token after the server rejected this one. Raises Denied if there is none."""
        async with self._lock:
            origin = self._read_configured()
            if origin is None:
                raise self._token_missing()
            better = self._load(origin)
            # A different token is already stored if another stream or process was faster, or the user set a new one.
            if better and better.jwt == rejected:
                better = await self._refresh(better)
            self._current = better or await self._bootstrap(origin)
            return self._current.jwt

    def _read_configured(self) -> str | None:
        token = tokens.configured(self._settings)
        self._hide(token)
        return token

    def _load(self, origin: str) -> Signed | None:
        """Return the stored token for this configured token, otherwise the configured one if it is a signed token."""
        self._origin = origin
        found = tokens.kept(self._settings.home, self._settings.name, self._binding(origin)) or tokens.signed(origin)
        self._hide(found.jwt if found else None)
        return found

    def _is_due(self, token: Signed) -> bool:
        now = self._clock()
        return token.expires_at - now < _DAY and now >= self._not_before

    async def _renew_early(self, token: Signed, origin: str) -> None:
        """Try to renew. On failure the old token stays: if it is invalid, the next response says so."""
        self._not_before = self._clock() + _PAUSE
        with contextlib.suppress(Busy, Denied, Unreachable):
            self._current = await self._refresh(token) or await self._bootstrap(origin)

    async def _refresh(self, token: Signed) -> Signed | None:
        """Exchange the token for a new one; None if the server does not accept it."""
        answer = await self._request("POST", "/v1/identity/refresh", {"Authorization": f"Bearer {token.jwt}"})
        if answer.is_success:
            return await self._store(answer)
        if answer.status >= 500 or answer.status == 429:
            raise answers.trouble(answer.without(self._secrets))
        return None

    async def _bootstrap(self, origin: str) -> Signed:
        if tokens.signed(origin):
            raise self._rejected("the signed token in the config is invalid or has expired")
        secret = await asyncio.to_thread(tokens.gateway_secret, self._settings.home)
        self._hide(secret)
        request = {
            "bootstrap_token": origin,
            "gateway_id": self._settings.gateway_id,
            "gateway_secret": secret,
            "host": self._host,
        }
        headers = {"Content-Type": "application/json"}
        answer = await self._request("POST", "/v1/identity/bootstrap", headers, orjson.dumps(request))
        if not answer.is_success:
            raise self._bootstrap_error(answer.without(self._secrets))
        return await self._store(answer)

    def _bootstrap_error(self, answer: Answer) -> Exception:
        if answer.kind == "gateway_bound":
            return Denied(
                f"{self._address} has bound the id {self._settings.gateway_id} to another home: it responded with "
                f"{answer.summary}",
                kind=answer.kind,
                repair="restore delivery/gateway.secret of the home that delivered there first",
            )
        if answer.status in (400, 401, 403, 409, 413, 422):
            return self._rejected(f"it responded with {answer.summary}", kind=answer.kind)
        if answer.status == 404:
            return Denied(
                f"{self._address} has no /v1/identity/bootstrap: it is probably not a HypAware server",
                kind="no_such_server",
                repair=f"hyp config set sinks.{self._settings.name}.url <address>",
            )
        return answers.trouble(answer)

    async def _store(self, answer: Answer) -> Signed:
        document = answer.document or {}
        jwt, expires = document.get("jwt"), tokens.as_moment(document.get("expires_at"))
        if not isinstance(jwt, str) or not tokens.is_token(jwt):
            raise Unreachable(f"{self._address} responded with {answer.status} to a token request, but without a token")
        self._hide(jwt)
        now = self._clock()
        if expires is None:
            expires = parsed.expires_at if (parsed := tokens.signed(jwt)) else now
        # Converted to the local clock, in case it differs from the server's.
        server_now = answers.moment(answer.headers.get("date", ""))
        token = Signed(jwt, max(0.0, expires + (now - server_now if server_now is not None else 0.0)))
        self._not_before = now + max(_SHORTEST_USE, (token.expires_at - now) / 2)
        assert self._origin
        try:
            await asyncio.to_thread(
                tokens.keep, self._settings.home, self._settings.name, self._binding(self._origin), token
            )
        except OSError as error:
            raise Denied(f"the server's token cannot be stored: {error.strerror}", kind="token_not_kept") from None
        return token

    def _binding(self, origin: str) -> Bond:
        return Bond(self._address, self._settings.gateway_id, tokens.hash_of(origin))

    def _hide(self, secret: str | None) -> None:
        if secret and len(secret) >= _SHORTEST_SECRET:
            self._secrets.add(secret)

    def _token_missing(self) -> Denied:
        name = self._settings.name
        return Denied(
            f"{self._address} requires a token, but the sink {name} has none: set token_file in its config",
            kind="token_missing",
            repair=f"hyp config set sinks.{name}.token_file <file with the token>",
        )

    def _rejected(self, reason: str, kind: str | None = None) -> Denied:
        name, options = self._settings.name, self._settings.options
        target = options.get("token_file") or f"the environment variable {options.get('token_env')}"
        return Denied(
            f"{self._address} rejects the token of the sink {name}: {reason}",
            kind=kind or "token_refused",
            repair=f"put a token from `hyp server token create` into {target}",
        )
