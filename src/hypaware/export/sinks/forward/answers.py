"""Interpret the responses of a server.

| status | meaning |
|---|---|
| 200, 201, 202, 204 | accepted; but never an HTML page, whatever its status (a proxy or a login page responded) |
| 400, 413, 422 | Refused: the chunk can never be accepted |
| 401, 403, 404, redirects, other 4xx | Denied: a user must act |
| 409 `range_overlap` | Overlap; any other 409 is Refused |
| 429, 503 | Busy, for as long as a positive Retry-After says |
| 408, 425, other 5xx, anything else | Unreachable: says nothing about the chunk |

Text from a server is shown cut to 300 characters, without control characters, and without our secrets, which a careless
server may echo.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

import orjson

from hypaware.export.sink import Busy, Delivered, Denied, Overlap, Refused, Unreachable

_MAX_SHOWN = 300
_SUCCESS = (200, 201, 202, 204)
_REFUSED = (400, 413, 422)
_BUSY = (429, 503)
_INCONCLUSIVE = (408, 425)
_KIND = re.compile(r"[a-z][a-z0-9_]{0,59}")
# Longer than any real delay, and short enough to add to a time.
_LONGEST_WAIT = 10**9


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The JSON object in the body, if it is one."""
        try:
            value = orjson.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def kind(self) -> str | None:
        """The server's code of the error."""
        kind = self.document.get("error") if self.document else None
        return kind if isinstance(kind, str) and _KIND.fullmatch(kind) else None

    @property
    def is_success(self) -> bool:
        return self.status in _SUCCESS and not self.is_html

    @property
    def is_not_found(self) -> bool:
        """Whether this is a 404 of a server that knows the contract: no body, or an error in its format."""
        return self.status == 404 and (not self.body or self.kind is not None)

    @property
    def is_html(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/html")

    @property
    def summary(self) -> str:
        """`422 bad_row: line 3 …`"""
        words = " ".join(filter(None, (str(self.status), self.kind)))
        return f"{words}: {detail}"[:_MAX_SHOWN] if (detail := self._detail()) else words

    def without(self, secrets: Iterable[str]) -> Answer:
        body, headers = self.body, self.headers
        for secret in secrets:
            body = body.replace(secret.encode(), b"***")
            headers = {name: value.replace(secret, "***") for name, value in headers.items()}
        return replace(self, body=body, headers=headers)

    def _detail(self) -> str:
        if self.is_html:
            return "an HTML page"
        if self.document is None:
            return printable(self.body.decode("utf-8", "replace"))
        rest = {key: value for key, value in self.document.items() if key != "error" or self.kind is None}
        detail = next((rest[key] for key in ("detail", "message", "reason") if isinstance(rest.get(key), str)), None)
        if detail is None:
            return printable(orjson.dumps(rest).decode()) if rest else ""
        return printable(f"line {rest['line']}: {detail}" if type(rest.get("line")) is int else detail)


def printable(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_SHOWN])
    return " ".join(shown.split())[:_MAX_SHOWN]


def refusal(answer: Answer) -> Refused | Overlap | None:
    """Return the error about the chunk that was sent; None if the response says nothing about it."""
    if answer.status == 409 and answer.kind == "range_overlap":
        return Overlap(read_delivered(answer, "covered_to"))
    if answer.status in _REFUSED or answer.status == 409:
        return Refused(_message(answer))
    return None


def trouble(answer: Answer) -> Busy | Denied | Unreachable:
    """Return the error of a request that failed for a reason other than its chunk."""
    if answer.status in _BUSY:
        return Busy(_message(answer), retry_after(answer.headers))
    if 300 <= answer.status < 400:
        target = printable(answer.headers.get("location", "an unnamed address"))
        return Denied(
            f"the server redirects to {target}; rows and tokens are only sent to the configured address",
            kind="redirected",
            repair="hyp config set sinks.<name>.url <actual address>",
        )
    if 400 <= answer.status < 500 and answer.status not in _INCONCLUSIVE:
        return Denied(_message(answer), kind=answer.kind or f"http_{answer.status}")
    return Unreachable(_message(answer))


def _message(answer: Answer) -> str:
    return f"the server responded with {answer.summary}"


def read_delivered(answer: Answer, key: str) -> Delivered:
    """Read a watermark, and the holes below it if there are any."""
    document = answer.document or {}
    try:
        last = _sequence(document[key])
        holes = tuple((_sequence(after), _sequence(end)) for after, end in document.get("holes") or ())
        if any(after >= end or end > last for after, end in holes):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Unreachable(f"the server responded with {answer.status}, but without a valid {key}") from None
    return Delivered(last, holes)


def _sequence(value: Any) -> int:
    """Parse a sequence; above 2^53 it is sent as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds, if it is positive. A date is compared with the server's own clock if it is known."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text.isascii() else 0.0
    except ValueError:
        until, now = moment(text), moment(headers.get("date", ""))
        seconds = 0.0 if until is None else until - (now if now is not None else time.time())
    # Compared in this direction, a NaN is no delay either.
    return min(seconds, _LONGEST_WAIT) if seconds > 0 else None


def moment(http_date: str) -> float | None:
    try:
        return parsedate_to_datetime(http_date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
