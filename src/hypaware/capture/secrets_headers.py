"""Secrets in quoted HTTP headers: `Authorization: Basic …`, `"cookie": "…"`.

Names and schemes are case-insensitive. A scheme alone is enough if only a credential can follow it; after a header name
the value must look like a secret. Only the values of a cookie are secret; its names and attributes stay.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from hypaware.capture import secrets_judged as judged
from hypaware.capture import secrets_rules as rules

Found = tuple[int, int, str]
"""Start, end and kind."""


def find(data: bytes) -> Iterator[Found]:
    lowered = data.lower()
    yield from _after_schemes(data, lowered)
    yield from _in_authorizations(data, lowered)
    yield from _in_cookies(data, lowered)


def header_named(name: str) -> str | None:
    """Return which of the scanned headers a JSON object's key denotes, or None."""
    name = name.lower()
    return next((header.decode() for header in rules.HEADERS if name.endswith(header.decode())), None)


def _after_schemes(data: bytes, lowered: bytes) -> Iterator[Found]:
    names_header = rules.AUTHORIZATION in lowered
    for scheme, (kind, form) in rules.SCHEMES.items():
        at = lowered.find(scheme)
        while at >= 0:
            after = at + len(scheme)
            if token := form.match(data, after):
                after = token.end()
                if judged.is_mixed(token[1]) if kind == rules.BEARER else _is_basic(token[1], names_header):
                    yield (*token.span(1), kind)
            at = lowered.find(scheme, after)


def _is_basic(token: bytes, names_header: bool) -> bool:
    """Return whether the token encodes user and password; they may be binary if the text names the header."""
    try:
        said = base64.b64decode(token + b"=" * (-len(token) % 4), validate=True)
    except ValueError:
        return False
    return b":" in said and (names_header or _is_printable(said))


def _is_printable(said: bytes) -> bool:
    try:
        return said.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _in_authorizations(data: bytes, lowered: bytes) -> Iterator[Found]:
    """Find credentials of other schemes or without a scheme."""
    at = lowered.find(rules.AUTHORIZATION)
    while at >= 0:
        after = at + len(rules.AUTHORIZATION)
        if value := rules.AUTHORIZATION_VALUE.match(data, after):
            after = value.end()
            scheme = (value["scheme"] or b"").strip().lower()
            if scheme not in rules.SCHEMES and judged.is_secret(
                value["value"], rules.ASSIGNED, is_env=False, is_quoted=False
            ):
                yield (*value.span("value"), rules.ASSIGNED)
        at = lowered.find(rules.AUTHORIZATION, after)


def _in_cookies(data: bytes, lowered: bytes) -> Iterator[Found]:
    at = lowered.find(rules.COOKIE_NAME)
    while at >= 0:
        after = at + len(rules.COOKIE_NAME)
        if cookie := rules.COOKIE_VALUE.match(data, after):
            after = cookie.end()
            begin = cookie.start(1)
            for pair in cookie[1].split(b";"):
                name, sign, value = pair.partition(b"=")
                if sign and name.strip().lower() not in rules.COOKIE_ATTRIBUTES and _is_cookie(value):
                    start = begin + len(name) + 1
                    yield start, start + len(value.rstrip()), rules.COOKIE
                begin += len(pair) + 1
        at = lowered.find(rules.COOKIE_NAME, after)


def _is_cookie(value: bytes) -> bool:
    value = value.rstrip()
    return (
        len(value) >= rules.COOKIE_LEAST
        and rules.COOKIE_TOKEN.fullmatch(value) is not None
        and judged.is_mixed(value)
        and not judged.is_placeholder(value)
    )
