"""Deliver to a HypAware server over HTTP: the published v1 contract, and extensions of our own server.

Everything works with a server that implements only the contract: it ignores the headers with a chunk's range and is
never sent a query that it does not support.

| module | contents |
|---|---|
| `server_info` | the server's canonical URL and its extensions |
| `http_client` | one HTTP request, and the meaning of its response |
| `credentials` | authentication: signed tokens and the home's secret |
| `sink` | the sink, and the body of a chunk |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.forward.server_info import normalise_url


def _address(settings: SinkSettings) -> str:
    return normalise_url(settings.options["url"])


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.forward.sink import ForwardSink

    return ForwardSink(settings)


FORWARD = SinkType("forward", "a HypAware server", _address, _make)
