"""Deliver to a HypAware server over HTTP: the published v1 contract, and extensions of our own server.

`sink` combines the parts: `ndjson` (rows to lines), `packing` (lines to a body), `wire` (one HTTP request), `answers`
(the meaning of a response), `capabilities` (the server's extensions), `credentials` and `tokens` (authentication).
Everything works with a server that implements only the contract: it ignores the headers with a chunk's range and is
never sent a query that it does not support.
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.forward import address


def _address(settings: SinkSettings) -> str:
    return address.normalised(settings.options["url"])


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.forward.sink import ForwardSink

    return ForwardSink(settings)


FORWARD = SinkType("forward", "a HypAware server", _address, _make)
