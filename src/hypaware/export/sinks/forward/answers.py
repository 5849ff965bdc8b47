"""What a server's answer means, and how it is shown.

| status | meaning |
|---|---|
| 200, 201, 202, 204 | taken; but a web page never means so, whatever its status (a proxy or a log-in page answered) |
| 400, 413, 422 | Refused: the chunk is poison |
| 401, 403, 404, redirects, other 4xx | Denied: somebody must act |
| 409 `range_overlap` | Overlap; any other 409 is Refused |
| 429, 503 | Busy, for as long as a positive Retry-After says |
| 408, 425, other 5xx, anything else | Unreachable: it says nothing about the chunk |

What a server says is shown cut to 300 characters, in letters that do nothing to a terminal, and without our secrets:
a careless one may repeat them.
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

_SHOWN = 300
_TAKEN = (200, 201, 202, 204)
_POISON = (400, 413, 422)
_BUSY = (429, 503)
_SAYS_NOTHING = (408, 425)
_KIND = re.compile(r"[a-z][a-z0-9_]{0,59}")
# Longer than anybody means; it would only end in a number that cannot be counted with.
_LONGEST_WAIT = 10**9


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in small letters."""
    body: bytes

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The JSON object that it holds, if it holds one."""
        try:
            value = orjson.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def kind(self) -> str | None:
        """The server's own name for what went wrong."""
        said = self.document.get("error") if self.document else None
        return said if isinstance(said, str) and _KIND.fullmatch(said) else None

    @property
    def is_taken(self) -> bool:
        return self.status in _TAKEN and not self.is_web_page

    @property
    def is_absent(self) -> bool:
        """A 404 by somebody who knows the contract: no body, or an error in its form."""
        return self.status == 404 and (not self.body or self.kind is not None)

    @property
    def is_web_page(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/html")

    @property
    def shown(self) -> str:
        """`422 bad_row: line 3 …`"""
        words = " ".join(filter(None, (str(self.status), self.kind)))
        return f"{words}: {detail}"[:_SHOWN] if (detail := self._detail()) else words

    def without(self, secrets: Iterable[str]) -> Answer:
        body, headers = self.body, self.headers
        for secret in secrets:
            body = body.replace(secret.encode(), b"***")
            headers = {name: value.replace(secret, "***") for name, value in headers.items()}
        return replace(self, body=body, headers=headers)

    def _detail(self) -> str:
        if self.is_web_page:
            return "a web page"
        if self.document is None:
            return printable(self.body.decode("utf-8", "replace"))
        rest = {key: value for key, value in self.document.items() if key != "error" or self.kind is None}
        told = next((rest[key] for key in ("detail", "message", "reason") if isinstance(rest.get(key), str)), None)
        if told is None:
            return printable(orjson.dumps(rest).decode()) if rest else ""
        return printable(f"line {rest['line']}: {told}" if type(rest.get("line")) is int else told)


def printable(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _SHOWN]).split())[:_SHOWN]


def refusal(answer: Answer) -> Refused | Overlap | None:
    """What it says of the chunk that was sent, if it says something."""
    if answer.status == 409 and answer.kind == "range_overlap":
        return Overlap(read_delivered(answer, "covered_to"))
    if answer.status in _POISON or answer.status == 409:
        return Refused(_message(answer))
    return None


def trouble(answer: Answer) -> Busy | Denied | Unreachable:
    """What it says of the server, when it did not do what was asked."""
    if answer.status in _BUSY:
        return Busy(_message(answer), retry_after(answer.headers))
    if 300 <= answer.status < 400:
        place = printable(answer.headers.get("location", "nowhere"))
        return Denied(
            f"the server sends us on to {place}; rows and tokens are not sent where the config does not say",
            kind="redirected",
            repair="hyp config set sinks.<name>.url <the address where it really is>",
        )
    if 400 <= answer.status < 500 and answer.status not in _SAYS_NOTHING:
        return Denied(_message(answer), kind=answer.kind or f"http_{answer.status}")
    return Unreachable(_message(answer))


def _message(answer: Answer) -> str:
    return f"the server answered {answer.shown}"


def read_delivered(answer: Answer, key: str) -> Delivered:
    """A watermark, with the holes below it if there are any."""
    document = answer.document or {}
    try:
        last = _sequence(document[key])
        holes = tuple((_sequence(after), _sequence(end)) for after, end in document.get("holes") or ())
        if any(after >= end or end > last for after, end in holes):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Unreachable(f"the server answered {answer.status} without a usable {key}") from None
    return Delivered(last, holes)


def _sequence(value: Any) -> int:
    """Beyond 2^53 it travels as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def retry_after(headers: Mapping[str, str]) -> float | None:
    """In seconds, if it is a positive number or a time to come, by the server's own clock where it shows it."""
    said = headers.get("retry-after", "").strip()
    try:
        seconds = float(said) if said.isascii() else 0.0
    except ValueError:
        until, now = moment(said), moment(headers.get("date", ""))
        seconds = 0.0 if until is None else until - (now if now is not None else time.time())
    # This way round a NaN is no wait either.
    return min(seconds, _LONGEST_WAIT) if seconds > 0 else None


def moment(http_date: str) -> float | None:
    try:
        return parsedate_to_datetime(http_date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
