"""Check each sink's destination: whether it is reachable, and whether its clock agrees with ours.

Nothing is delivered and no credential is sent. The check requests a server's health endpoint, connects to the port of
an object store, and reads the permissions of a folder.
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
_MAX_CLOCK_DIFFERENCE = 300.0
_STORES = {"s3": "s3.amazonaws.com", "gs": "storage.googleapis.com"}


def each(view: View) -> Iterator[Check]:
    for sink, declared in view.config.sinks.items():
        name = f"sink:{sink}"
        if view.state.identity is None:
            yield ok(name, "not tested: the home has not been used yet")
            continue
        try:
            address = configured.address(view.home, view.config, view.state.identity, sink)
        except HypError as error:
            yield failed(name, error.message, *(error.repair or ("hyp config show",)))
            continue
        yield _check_destination(view, name, sink, urlsplit(_catalog(declared) or address))


def _catalog(declared: SinkConfig) -> str | None:
    """Return the catalog URI of an Iceberg sink."""
    catalog = declared.options.get("catalog")
    uri = catalog.get("uri") if isinstance(catalog, dict) else None
    return str(uri) if uri else None


def _check_destination(view: View, name: str, sink: str, url: SplitResult) -> Check:
    if url.scheme == "file":
        return _check_folder(name, Path(url.netloc + url.path))
    if url.scheme in ("http", "https"):
        return _check_server(view, name, sink, url)
    if endpoint := parse_qs(url.query).get("endpoint"):
        return _check_port(name, urlsplit(endpoint[0] if "://" in endpoint[0] else f"https://{endpoint[0]}"))
    if url.scheme == "abfss":
        return _check_port(name, urlsplit(f"https://{url.netloc.rpartition('@')[2]}"))
    if url.scheme in _STORES:
        return _check_port(name, urlsplit(f"https://{_STORES[url.scheme]}"))
    return ok(name, f"{url.geturl()}: not tested, because this kind of address cannot be probed")


def _check_folder(name: str, path: Path) -> Check:
    existing = next(each for each in (path, *path.parents) if each.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return ok(name, f"{path} is writable" if existing == path else f"{path} will be created")
    return failed(name, f"{existing} is not writable", f"ls -ld {shlex.quote(str(existing))}")


def _check_server(view: View, name: str, sink: str, url: SplitResult) -> Check:
    connection_class = HTTPSConnection if url.scheme == "https" else HTTPConnection
    try:
        with closing(connection_class(url.hostname or "", url.port, timeout=_SECONDS)) as connection:
            connection.request("GET", url.path.rstrip("/") + _HEALTH)
            date = connection.getresponse().headers.get("Date")
    except (OSError, HTTPException, ssl.SSLError) as error:
        return failed(name, f"{url.geturl()} cannot be reached: {reason_of(error)}", f"hyp export {sink}")
    difference = _clock_difference(view, date)
    if difference is not None and abs(difference) > _MAX_CLOCK_DIFFERENCE:
        side = "ahead of" if difference > 0 else "behind"
        return warning(
            name, f"{url.netloc} answers; our clock is {words.duration(abs(difference))} {side} its clock", "date -u"
        )
    return ok(name, f"{url.netloc} answers")


def _clock_difference(view: View, date: str | None) -> float | None:
    try:
        return (view.now - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return None


def _check_port(name: str, url: SplitResult) -> Check:
    host, port = unquote(url.hostname or ""), url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        return failed(
            name, f"{host}:{port} cannot be reached: {reason_of(error)}", f"hyp export {name.partition(':')[2]}"
        )
    return ok(name, f"{host}:{port} can be reached")
