"""Each sink's destination: whether it can be reached from here, and whether its clock and ours agree.

Nothing is delivered and no credential is sent. A server is asked for its health, of an object store only the port, a
folder for its permissions.
"""

from __future__ import annotations

import os
import shlex
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from hypaware.config import SinkConfig
from hypaware.errors import HypError
from hypaware.export import configured
from hypaware.status import words
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.diagnostic import reason_of
from hypaware.status.view import View

_SECONDS = 3.0
_HEALTH = "/healthz"
_APART_SECONDS = 300.0
_STORES = {"s3": "s3.amazonaws.com", "gs": "storage.googleapis.com"}


def each(view: View) -> Iterator[Check]:
    for sink, declared in view.config.sinks.items():
        name = f"sink:{sink}"
        if view.memory.identity is None:
            yield ok(name, "is looked for when the home is used for the first time")
            continue
        try:
            address = configured.address(view.home, view.config, view.memory.identity, sink)
        except HypError as trouble:
            yield failed(name, trouble.message, *(trouble.repair or ("hyp config show",)))
            continue
        yield _reached(view, name, sink, urlsplit(_catalog(declared) or address))


def _catalog(declared: SinkConfig) -> str | None:
    """Of another lake: where its tables are registered."""
    catalog = declared.options.get("catalog")
    uri = catalog.get("uri") if isinstance(catalog, dict) else None
    return str(uri) if uri else None


def _reached(view: View, name: str, sink: str, where: SplitResult) -> Check:
    if where.scheme == "file":
        return _folder(name, Path(where.netloc + where.path))
    if where.scheme in ("http", "https"):
        return _server(view, name, sink, where)
    if endpoint := parse_qs(where.query).get("endpoint"):
        return _port(name, urlsplit(endpoint[0] if "://" in endpoint[0] else f"https://{endpoint[0]}"))
    if where.scheme == "abfss":
        return _port(name, urlsplit(f"https://{where.netloc.rpartition('@')[2]}"))
    if where.scheme in _STORES:
        return _port(name, urlsplit(f"https://{_STORES[where.scheme]}"))
    return ok(name, f"{where.geturl()}: nothing here can tell whether it is reached; the next round will")


def _folder(name: str, path: Path) -> Check:
    there = next(each for each in (path, *path.parents) if each.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ok(name, f"{path} can be written to" if there == path else f"{path} will be made")
    return failed(name, f"{there} cannot be written to", f"ls -ld {shlex.quote(str(there))}")


def _server(view: View, name: str, sink: str, where: SplitResult) -> Check:
    kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
    try:
        with closing(kind(where.hostname or "", where.port, timeout=_SECONDS)) as connection:
            connection.request("GET", where.path.rstrip("/") + _HEALTH)
            answer = connection.getresponse()
            told = answer.headers.get("Date")
    except (OSError, HTTPException, ssl.SSLError) as trouble:
        return failed(name, f"{where.geturl()} cannot be reached: {reason_of(trouble)}", f"hyp export {sink}")
    apart = _apart(view, told)
    if apart is not None and abs(apart) > _APART_SECONDS:
        side = "ahead of" if apart > 0 else "behind"
        return warning(
            name, f"{where.netloc} answers; our clock is {words.duration(abs(apart))} {side} its own", "date -u"
        )
    return ok(name, f"{where.netloc} answers")


def _apart(view: View, told: str | None) -> float | None:
    try:
        return (view.now - parsedate_to_datetime(told or "")).total_seconds()
    except (TypeError, ValueError):
        return None


def _port(name: str, where: SplitResult) -> Check:
    host, port = unquote(where.hostname or ""), where.port or (80 if where.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as trouble:
        return failed(
            name, f"{host}:{port} cannot be reached: {reason_of(trouble)}", f"hyp export {name.partition(':')[2]}"
        )
    return ok(name, f"{host}:{port} can be reached")
