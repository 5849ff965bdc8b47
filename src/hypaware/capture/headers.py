"""Which headers go on to the other side: all of them, in their order and spelling, but those of one connection.

Not passed on: what RFC 9110 calls hop-by-hop, what the `Connection` header names, what is meant for HypAware itself
(`x-hypaware-*`, `x-hyp-*`), the `Host` of this gateway, and the framing, which each connection has for itself (a
known length is kept).

A value is text: UTF-8, or Latin-1 where it is no UTF-8. The library writes UTF-8 whatever came, so that a Latin-1 value
goes on as the same text in other bytes; everything else goes on as the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict

from hypaware.capture.recording import Headers

RawHeaders = Iterable[tuple[bytes, bytes]]

_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = ("x-hypaware-", "x-hyp-")


def as_written(raw: RawHeaders) -> Headers:
    return [(_text(name), _text(value)) for name, value in raw]


def for_upstream(headers: Headers) -> CIMultiDict[str]:
    """The client that sends them writes `Host` itself; it must not wait for a 100 that the gateway has given."""
    return _passing(
        (name, value)
        for name, value in headers
        if not name.lower().startswith(_OURS)
        and name.lower() != "host"
        and not (name.lower() == "expect" and value.lower() == "100-continue")
    )


def for_client(headers: Headers) -> CIMultiDict[str]:
    return _passing(headers)


def _passing(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    headers = list(headers)
    dropped = _ONE_CONNECTION | {
        named.strip().lower() for name, value in headers if name.lower() == "connection" for named in value.split(",")
    }
    passing: CIMultiDict[str] = CIMultiDict()
    spelling: dict[str, str] = {}
    for name, value in headers:
        if (plain := name.lower()) not in dropped:
            # aiohttp takes two spellings of one name for a replacement.
            passing.add(spelling.setdefault(plain, name), value)
    return passing


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
