"""Delivery to a HypAware server over HTTP: its published v1 contract, and what ours adds to it.

`sink` joins the parts: `ndjson` (rows to lines), `packing` (lines to a body), `wire` (one exchange over HTTP),
`answers` (what a status means), `capabilities` (what the server can do beyond the contract), `credentials` and
`tokens` (who we are). Everything works against a server that has only the contract: it is told the range of a chunk
in headers that it ignores, and is never asked what it cannot know.
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.forward import address


def _address(settings: SinkSettings) -> str:
    return address.normalised(settings.options["url"])


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.forward.sink import ForwardSink

    return ForwardSink(settings)


FORWARD = SinkType("forward", "to a HypAware server", _address, _make)
