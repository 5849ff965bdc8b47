"""What anybody may ask without a token: which server this is, what it takes, whether it lives, what it has counted."""

from __future__ import annotations

import asyncio

from aiohttp import web

from hypaware.server.headers import ENCODINGS
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, json_response

_EXTENSIONS = ("batches", "watermark", "ranges")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class OperatorRoutes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def capabilities(self, _request: web.Request) -> web.Response:
        return json_response(
            {
                "server": "hypaware",
                "server_id": self._parts.server_id,
                "api": 1,
                "extensions": _EXTENSIONS,
                "encodings": ENCODINGS,
                "limits": self._parts.limits.told(),
            }
        )

    async def healthy(self, _request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def ready(self, _request: web.Request) -> web.Response:
        if self._parts.draining:
            raise Problem(503, "draining")
        if self._parts.trouble.now is not None:
            await asyncio.to_thread(self._parts.look_again)
        if (trouble := self._parts.trouble.now) is not None:
            raise Problem(503, "storage_unavailable", reason=trouble)
        return json_response({"status": "ready"})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._parts.meters.text(), headers={"Content-Type": _PROMETHEUS})
