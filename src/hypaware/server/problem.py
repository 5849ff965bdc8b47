"""Error responses: an HTTP status, `{"error": "<kind>", …}` and, if a retry can help, Retry-After.

A sender must not repeat a request unchanged after 400, 413 and 422; it repeats it after Retry-After seconds after 429
and 503.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

RETRY_SECONDS = 5


class Problem(Exception):
    def __init__(self, status: int, kind: str, *, retry_after: float | None = None, **detail: Any) -> None:
        super().__init__(f"{status} {kind}")
        self.status = status
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after

    def response(self) -> web.Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response({"error": self.kind, **self.detail}, self.status, headers)


def bad_request(kind: str, reason: str) -> Problem:
    return Problem(400, kind, reason=reason)


def unavailable(kind: str, retry_after: float = RETRY_SECONDS) -> Problem:
    """Return a 503: the server has a problem, nothing was stored, and the same request may succeed later."""
    return Problem(503, kind, retry_after=retry_after)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json", headers=headers)
