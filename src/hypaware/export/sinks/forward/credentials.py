"""Authenticate to the server with a signed token, which is configured or obtained with a bootstrap token.

    POST /v1/identity/bootstrap {"bootstrap_token", "gateway_id", "gateway_secret", "host"} → {"jwt", "expires_at"}
    POST /v1/identity/refresh   Bearer → the same

    delivery/tokens/<sink>.json   {"v":1, "address", "gateway_id", "origin", "jwt", "expires_at"}
    delivery/gateway.secret       64 hex digits

A token is renewed when less than a day is left, and once when the server rejects it; all streams share one renewal.
Files have mode 0600 and are replaced atomically. A stored token is valid only for the address, the gateway and the
configured token (`origin`, its hash) that it was obtained with: it is never sent elsewhere, and a new token in the
user's file discards it. The secret is generated once and never changes: a server binds the gateway's id to it at the
first bootstrap, so that no other home can deliver under this id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from hypaware import faults
from hypaware.export.sink import DestinationBusy, DestinationDenied, DestinationUnreachable, SinkSettings
from hypaware.export.sinks.forward import http_client
from hypaware.export.sinks.forward.http_client import HttpClient, ServerResponse
from hypaware.home import Home, durable_files
from hypaware.home.durable_files import open_regular_file
from hypaware.home.locks import locked

_before_keep = faults.crash_point("export.token.before-keep", "the server issued a token, it is not on disk")
_after_keep = faults.crash_point("export.token.after-keep", "the token is on disk, nothing is sent with it")
_before_secret = faults.crash_point("export.secret.before-write", "the home's secret is generated, it is not on disk")
_after_secret = faults.crash_point("export.secret.after-write", "the home's secret is durable, no server knows it")
_VERSION = 1
_MOST_BYTES = 16 << 10
# Bytes allowed in a header.
_TOKEN = re.compile(rb"[\x21-\x7e]+")
_SECRET = re.compile(r"[0-9a-f]{64}")
_DAY = 24 * 3600.0
# How long to wait before asking again a server that issued no better token.
_PAUSE = 600.0
_SHORTEST_USE = 60.0
# Redacting shorter secrets would damage ordinary words.
_SHORTEST_SECRET = 6


class ServerCredentials:
    def __init__(
        self, settings: SinkSettings, address: str, host: str, http: HttpClient, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._address, self._host = settings, address, host
        self._http, self._clock = http, clock
        self._current: BearerToken | None = None
        self._origin: str | None = None
        """The configured token that the current one was obtained with."""
        self._not_before = 0.0
        self._lock = asyncio.Lock()
        self.secrets: set[str] = set()
        """Everything that must not appear in a message."""

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
                self._not_before = self._clock() + _PAUSE
                # On failure the old token stays: if it is invalid, the next response says so.
                with contextlib.suppress(DestinationBusy, DestinationDenied, DestinationUnreachable):
                    self._current = await self._refresh(self._current) or await self._bootstrap(origin)
            return self._current.jwt

    async def replace_token(self, rejected: str | None) -> str:
        """Return another token after the server rejected this one. Raises DestinationDenied if there is none."""
        async with self._lock:
            origin = self._read_configured()
            if origin is None:
                name = self._settings.name
                raise DestinationDenied(
                    f"{self._address} requires a token, but the sink {name} has none: set token_file in its config",
                    kind="token_missing",
                    repair=f"hyp config set sinks.{name}.token_file <file with the token>",
                )
            better = self._load(origin)
            # A different token is already stored if another stream or process was faster, or the user set a new one.
            if better and better.jwt == rejected:
                better = await self._refresh(better)
            self._current = better or await self._bootstrap(origin)
            return self._current.jwt

    def _read_configured(self) -> str | None:
        """Read the user's token each time, because the user may correct the file; None if none is configured."""
        options = self._settings.options
        if options.get("token_file"):
            path = self._settings.home.root / Path(options["token_file"]).expanduser()
            where, repair = str(path), f"write a token from `hyp server token create` into {shlex.quote(str(path))}"
            try:
                with open_regular_file(path) as file:
                    token = file.read(_MOST_BYTES + 1).strip()
            except OSError as error:
                raise DestinationDenied(
                    f"the token of the sink {self._settings.name} cannot be read from {path}: "
                    f"{error.strerror or error}",
                    kind="token_missing",
                    repair=repair,
                ) from None
        elif variable := options.get("token_env"):
            where = f"the environment variable {variable} of the engine"
            repair = f"export {variable}=<token>, then hyp engine stop"
            token = os.environ.get(variable, "").encode("utf-8", "surrogateescape").strip()
        else:
            return None
        if not token:
            raise DestinationDenied(f"{where} contains no token", kind="token_missing", repair=repair)
        if len(token) > _MOST_BYTES or not _TOKEN.fullmatch(token):
            raise DestinationDenied(f"{where} does not contain a valid token", kind="token_malformed", repair=repair)
        self._hide(token.decode())
        return token.decode()

    def _load(self, origin: str) -> BearerToken | None:
        """Return the stored token for this configured token, otherwise the configured one if it is a signed token."""
        self._origin = origin
        found = parse_jwt(origin)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            stored = orjson.loads(self._path.read_bytes())
            jwt, expires_at = stored["jwt"], parse_timestamp(stored["expires_at"])
            is_bound = all(stored[name] == value for name, value in self._binding(origin).items())
            if is_bound and is_token(jwt) and expires_at is not None:
                found = BearerToken(jwt, expires_at)
        self._hide(found.jwt if found else None)
        return found

    def _is_due(self, token: BearerToken) -> bool:
        now = self._clock()
        return token.expires_at - now < _DAY and now >= self._not_before

    async def _refresh(self, token: BearerToken) -> BearerToken | None:
        """Exchange the token for a new one; None if the server does not accept it."""
        headers = {"Authorization": f"Bearer {token.jwt}"}
        response = await self._http.request("POST", "/v1/identity/refresh", headers)
        if response.is_success:
            return await self._store(response)
        if response.status >= 500 or response.status == 429:
            raise http_client.to_sink_error(response.without(self.secrets))
        return None

    async def _bootstrap(self, origin: str) -> BearerToken:
        if parse_jwt(origin):
            raise self._rejected("the signed token in the config is invalid or has expired")
        secret = await asyncio.to_thread(load_gateway_secret, self._settings.home)
        self._hide(secret)
        gateway = {"gateway_id": self._settings.gateway_id, "gateway_secret": secret}
        request = {"bootstrap_token": origin, **gateway, "host": self._host}
        headers = {"Content-Type": "application/json"}
        response = await self._http.request("POST", "/v1/identity/bootstrap", headers, orjson.dumps(request))
        if response.is_success:
            return await self._store(response)
        response = response.without(self.secrets)
        if response.kind == "gateway_bound":
            raise DestinationDenied(
                f"{self._address} has bound the id {self._settings.gateway_id} to another home: it responded with "
                f"{response.summary}",
                kind=response.kind,
                repair="restore delivery/gateway.secret of the home that delivered there first",
            )
        if response.status in (400, 401, 403, 409, 413, 422):
            raise self._rejected(f"it responded with {response.summary}", kind=response.kind)
        if response.status == 404:
            raise DestinationDenied(
                f"{self._address} has no /v1/identity/bootstrap: it is probably not a HypAware server",
                kind="no_such_server",
                repair=f"hyp config set sinks.{self._settings.name}.url <address>",
            )
        raise http_client.to_sink_error(response)

    async def _store(self, response: ServerResponse) -> BearerToken:
        document = response.document or {}
        jwt, expires = document.get("jwt"), parse_timestamp(document.get("expires_at"))
        if not isinstance(jwt, str) or not is_token(jwt):
            raise DestinationUnreachable(
                f"{self._address} responded with {response.status} to a token request, but without a token"
            )
        self._hide(jwt)
        now = self._clock()
        if expires is None:
            expires = parsed.expires_at if (parsed := parse_jwt(jwt)) else now
        # Converted to the local clock, in case it differs from the server's.
        server_now = http_client.parse_http_date(response.headers.get("date", ""))
        token = BearerToken(jwt, max(0.0, expires + (now - server_now if server_now is not None else 0.0)))
        self._not_before = now + max(_SHORTEST_USE, (token.expires_at - now) / 2)
        assert self._origin
        try:
            await asyncio.to_thread(self._write, {**self._binding(self._origin), **asdict(token)})
        except OSError as error:
            raise DestinationDenied(
                f"the server's token cannot be stored: {error.strerror}", kind="token_not_kept"
            ) from None
        return token

    def _write(self, document: dict[str, Any]) -> None:
        _before_keep()
        durable_files.make_dir(self._path.parent)
        durable_files.write_atomic(self._path, orjson.dumps(document))
        _after_keep()

    @property
    def _path(self) -> Path:
        return self._settings.home.delivery / "tokens" / f"{quote(self._settings.name, safe='')}.json"

    def _binding(self, origin: str) -> dict[str, Any]:
        """Return the version of the file and the use for which a stored token is valid."""
        digest = hashlib.sha256(origin.encode()).hexdigest()
        return {"v": _VERSION, "address": self._address, "gateway_id": self._settings.gateway_id, "origin": digest}

    def _hide(self, secret: str | None) -> None:
        if secret and len(secret) >= _SHORTEST_SECRET:
            self.secrets.add(secret)

    def _rejected(self, reason: str, kind: str | None = None) -> DestinationDenied:
        name, options = self._settings.name, self._settings.options
        target = options.get("token_file") or f"the environment variable {options.get('token_env')}"
        return DestinationDenied(
            f"{self._address} rejects the token of the sink {name}: {reason}",
            kind=kind or "token_refused",
            repair=f"put a token from `hyp server token create` into {target}",
        )


@dataclass(frozen=True)
class BearerToken:
    jwt: str
    expires_at: float
    """Seconds since the epoch, by the local clock."""


def parse_jwt(token: str) -> BearerToken | None:
    """Parse a signed token (JWT) with an expiry; None for any other text. Only the server can verify the signature."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    expires = parse_timestamp(claims.get("exp")) if isinstance(claims, dict) else None
    return BearerToken(token, expires) if expires is not None else None


def parse_timestamp(value: Any) -> float | None:
    """Return seconds since the epoch; None for any other value."""
    return float(value) if type(value) in (int, float) and 0 <= value < 2**53 else None


def is_token(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_BYTES and bool(_TOKEN.fullmatch(value.encode()))


def load_gateway_secret(home: Home) -> str:
    path = home.delivery / "gateway.secret"
    try:
        if not path.exists():
            durable_files.make_dir(path.parent)
            # Under a lock, so that the second of two processes finds the secret of the first.
            with locked(path.parent):
                if not path.exists():
                    _before_secret()
                    durable_files.write_atomic(path, secrets.token_hex(32).encode())
                    _after_secret()
        text = path.read_text("ascii", "replace").strip()
    except OSError as error:
        raise DestinationDenied(f"{path} cannot be read or written: {error.strerror}", kind="gateway_secret") from None
    if not _SECRET.fullmatch(text):
        raise DestinationDenied(
            f"{path} no longer holds this home's secret, by which servers recognise the home",
            kind="gateway_secret",
            repair=f"restore {shlex.quote(str(path))} from a backup",
        )
    return text
