"""The installed clients as senders of requests: which one sent a request, and what it states beyond the dialect.

What a client declares (`Client.traffic`, `Client.requests`) is read once per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from hypaware import plugins
from hypaware.clients.client import Client
from hypaware.clients.client_requests import ClientRequest, ClientTraffic, RequestFacts, RequestReader, SessionIds
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
    return {client.name: client.traffic for client in _clients().values() if client.traffic is not None}


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
    others = (reader for each, reader in readers.items() if each != client)
    named = (each.find_session(request) for each in (*((own,) if own else ()), *others))
    ids = next((each for each in named if each != SessionIds()), None) or SessionIds(identify_opening())
    return Sender(
        client=client,
        # The version is that of the sending program; it does not apply to a client that only uses that program.
        version=version if known is not None else None,
        ids=ids,
        facts=own.read(request, ids) if own else RequestFacts(),
    )


@cache
def _clients() -> Mapping[str, Client]:
    return {client.name: client for client in plugins.load_declarations(plugins.CLIENTS, Client)}


@cache
def _list_readers(dialect: str) -> Mapping[str, RequestReader]:
    found = {name: client.requests for name, client in _clients().items() if client.requests is not None}
    return {name: reader for name, reader in found.items() if dialect in reader.dialects}


def _find_client(product: str) -> str | None:
    for client, traffic in list_traffic().items():
        for named in traffic.user_agents:
            if product.startswith(named[:-1]) if named.endswith("*") else product == named:
                return client
    return None
