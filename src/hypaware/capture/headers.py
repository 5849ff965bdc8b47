"""Selection of the headers that the proxy forwards."""

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
    """Return the headers to forward. The HTTP client sets `Host`, and the gateway has already answered `Expect`."""
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
    excluded = _ONE_CONNECTION | {
        listed.strip().lower() for name, value in headers if name.lower() == "connection" for listed in value.split(",")
    }
    forwarded: CIMultiDict[str] = CIMultiDict()
    spelling: dict[str, str] = {}
    for name, value in headers:
        if (lower := name.lower()) not in excluded:
            # aiohttp treats two spellings of a name as a replacement.
            forwarded.add(spelling.setdefault(lower, name), value)
    return forwarded


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
