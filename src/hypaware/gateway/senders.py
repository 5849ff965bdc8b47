"""The installed clients as senders of requests: which one sent a request, and what it states beyond the dialect.

What a client declares (`Client.traffic`, `Client.requests`) is read once per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

from hypaware import plugins
from hypaware.clients.client import Client
from hypaware.clients.client_requests import (
    ClientRequest,
    ClientTraffic,
    ClientUpstream,
    RequestFacts,
    RequestReader,
    SessionIds,
)
from hypaware.gateway.exchange import DecodedExchange
from hypaware.model.json_values import as_mapping

_PRODUCT = re.compile(r"([A-Za-z0-9_.-]{1,60})/([0-9A-Za-z.+-]{1,40})(?: \(([^)]{0,80})\))?")
_SESSION_HEADERS = ("session-id", "session_id", "thread-id", "conversation_id")
"""Headers of no client in particular that name a session or a thread."""


@dataclass(frozen=True)
class Sender:
    client: str | None
    """Its name in the table."""
    version: str | None
    ids: SessionIds
    facts: RequestFacts


@cache
def list_traffic() -> Mapping[str, ClientTraffic]:
    """Return what the gateway knows of each client that can be attached, by its name."""
    return {name: client.traffic for name, client in _clients().items() if _is_well_formed(client.traffic)}


def _is_well_formed(traffic: object) -> TypeGuard[ClientTraffic]:
    """Return whether a declaration is one. That of another package must not take the routes from all clients."""
    return (
        isinstance(traffic, ClientTraffic)
        and isinstance(traffic.upstreams, tuple)
        and all(isinstance(each, ClientUpstream) for each in traffic.upstreams)
    )


@cache
def list_session_headers() -> tuple[str, ...]:
    """Return the headers that name a session, those of the clients first."""
    own = (name for traffic in list_traffic().values() for name in traffic.session_headers)
    return (*own, *_SESSION_HEADERS)


@cache
def list_recorded_headers() -> frozenset[str]:
    """Return the clients' own headers whose values are stored."""
    return frozenset(
        name for traffic in list_traffic().values() for name in (*traffic.session_headers, *traffic.recorded_headers)
    )


def identify_sender(decoded: DecodedExchange, dialect: str, identify_opening: Callable[[], str]) -> Sender:
    """Return who sent the request, by the mark of its path or its user agent, and what it states.

    `identify_opening` returns the id of a session that nothing names: a hash of how the conversation begins.
    """
    product = _PRODUCT.match(decoded.request_headers.get("user-agent", ""))
    name, version, remarks = product.groups() if product else ("", None, None)
    known = _find_client(name) if product else None
    client = decoded.client_name or known
    request = ClientRequest(
        dialect,
        decoded.path,
        decoded.request_headers,
        as_mapping(decoded.request),
        re.split(r",\s*", remarks) if remarks else (),
    )
    readers = _list_readers(dialect)
    own = readers.get(client or "")
    ids = own.find_session(request) if own else SessionIds()
    if ids == SessionIds():
        others = (reader for each, reader in readers.items() if each != client)
        ids = next(filter(None, (_find_foreign_session(each, request) for each in others)), None) or SessionIds(
            identify_opening()
        )
    return Sender(
        client=client,
        # The version is that of the sending program; it does not apply to a client that only uses that program.
        version=version if known is not None else None,
        ids=ids,
        facts=own.read(request, ids) if own else RequestFacts(),
    )


def _find_foreign_session(reader: RequestReader, request: ClientRequest) -> SessionIds | None:
    """Return what a client reads as the session of another sender's request. Its failure is not that of the request."""
    with suppress(Exception):
        ids = reader.find_session(request)
        return None if ids == SessionIds() else ids
    return None


@cache
def _clients() -> Mapping[str, Client]:
    return {client.name: client for client in plugins.load_declarations(plugins.CLIENTS, Client)}


@cache
def _list_readers(dialect: str) -> Mapping[str, RequestReader]:
    readers = {}
    for name, client in _clients().items():
        # A broken part (`hyp plugin list` shows it) must not keep the requests of other clients from being recorded.
        with suppress(Exception):
            if (reader := client.requests) is not None and dialect in reader.dialects:
                readers[name] = reader
    return readers


def _find_client(product: str) -> str | None:
    for client, traffic in list_traffic().items():
        for named in traffic.user_agents:
            if product.startswith(named[:-1]) if named.endswith("*") else product == named:
                return client
    return None
