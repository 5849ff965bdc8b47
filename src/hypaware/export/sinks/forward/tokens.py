"""Tokens on disk: the user's configured token, the signed token from the server, and the secret of this home.

    delivery/tokens/<sink>.json   {"v":1, "address", "gateway_id", "origin", "jwt", "expires_at"}
    delivery/gateway.secret       64 hex digits

Files have mode 0600 and are replaced atomically. A stored token is valid only for the address, the gateway and the
configured token (`origin`, its hash) that it was obtained with: it is never sent elsewhere, and a new token in the
user's file discards it. The secret is generated once and never changes: a server binds the gateway's id to it at the
first bootstrap, so that no other home can deliver under this id.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import secrets
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from hypaware import durable, faults
from hypaware.export.sink import Denied, SinkSettings
from hypaware.home import Home
from hypaware.regular import open_regular

_before_keep = faults.point("export.token.before-keep", "the server issued a token, it is not on disk")
_after_keep = faults.point("export.token.after-keep", "the token is on disk, nothing is sent with it")
_before_secret = faults.point("export.secret.before-write", "the home's secret is generated, it is not on disk")
_after_secret = faults.point("export.secret.after-write", "the home's secret is durable, no server knows it")

_VERSION = 1
_MOST_BYTES = 16 << 10
# Bytes allowed in a header.
_TOKEN = re.compile(rb"[\x21-\x7e]+")
_SECRET = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Signed:
    jwt: str
    expires_at: float
    """Seconds since the epoch, by the local clock."""


@dataclass(frozen=True)
class Bond:
    """The use for which a stored token is valid."""

    address: str
    gateway_id: str
    origin: str


def configured(settings: SinkSettings) -> str | None:
    """Read the user's token, each time, so that a corrected file applies at once; None if none is configured."""
    file, variable = settings.options.get("token_file"), settings.options.get("token_env")
    if file:
        return _from_file(settings, Path(file).expanduser())
    if variable:
        return _checked(
            os.environ.get(variable, "").encode("utf-8", "surrogateescape"),
            f"the environment variable {variable} of the engine",
            f"export {variable}=<token>, then hyp engine stop",
        )
    return None


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def signed(token: str) -> Signed | None:
    """Parse a signed token (JWT) with an expiry; None for any other text. Only the server can verify the signature."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    expires = as_moment(claims.get("exp")) if isinstance(claims, dict) else None
    return Signed(token, expires) if expires is not None else None


def as_moment(value: Any) -> float | None:
    """Return seconds since the epoch; None for any other value."""
    return float(value) if type(value) in (int, float) and 0 <= value < 2**53 else None


def is_token(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_BYTES and bool(_TOKEN.fullmatch(value.encode()))


def kept(home: Home, sink: str, bond: Bond) -> Signed | None:
    try:
        found = orjson.loads(_path(home, sink).read_bytes())
        if found["v"] != _VERSION or any(found[name] != value for name, value in asdict(bond).items()):
            return None
        jwt, expires_at = found["jwt"], as_moment(found["expires_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Signed(jwt, expires_at) if is_token(jwt) and expires_at is not None else None


def keep(home: Home, sink: str, bond: Bond, token: Signed) -> None:
    path = _path(home, sink)
    _before_keep()
    durable.make_dir(path.parent)
    durable.write_file(path, orjson.dumps({"v": _VERSION, **asdict(bond), **asdict(token)}))
    _after_keep()


def gateway_secret(home: Home) -> str:
    path = home.delivery / "gateway.secret"
    try:
        if not path.exists():
            _draw_secret(path)
        text = path.read_text("ascii", "replace").strip()
    except OSError as error:
        raise Denied(f"{path} cannot be read or written: {error.strerror}", kind="gateway_secret") from None
    if not _SECRET.fullmatch(text):
        raise Denied(
            f"{path} no longer holds this home's secret, by which servers recognise the home",
            kind="gateway_secret",
            repair=f"restore {shlex.quote(str(path))} from a backup",
        )
    return text


def _draw_secret(path: Path) -> None:
    """Generate the secret under a lock, so that the second of two processes finds that of the first."""
    durable.make_dir(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            _before_secret()
            durable.write_file(path, secrets.token_hex(32).encode())
            _after_secret()
    finally:
        os.close(folder)


def _path(home: Home, sink: str) -> Path:
    return home.delivery / "tokens" / f"{quote(sink, safe='')}.json"


def _from_file(settings: SinkSettings, path: Path) -> str:
    path = settings.home.root / path
    repair = f"write a token from `hyp server token create` into {shlex.quote(str(path))}"
    try:
        with open_regular(path) as file:
            return _checked(file.read(_MOST_BYTES + 1), str(path), repair)
    except OSError as error:
        raise Denied(
            f"the token of the sink {settings.name} cannot be read from {path}: {error.strerror or error}",
            kind="token_missing",
            repair=repair,
        ) from None


def _checked(raw: bytes, where: str, repair: str) -> str:
    token = raw.strip()
    if not token:
        raise Denied(f"{where} contains no token", kind="token_missing", repair=repair)
    if len(token) > _MOST_BYTES or not _TOKEN.fullmatch(token):
        raise Denied(f"{where} does not contain a valid token", kind="token_malformed", repair=repair)
    return token.decode()
