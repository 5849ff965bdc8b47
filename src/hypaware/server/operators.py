"""Endpoints without authentication: capabilities, health, readiness and metrics."""

from __future__ import annotations

import asyncio

from aiohttp import web

from hypaware.server.headers import ENCODINGS
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, json_response

_EXTENSIONS = ("batches", "watermark", "ranges")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class OperatorRoutes:
    def __init__(self, context: Parts) -> None:
        self._context = context

    async def capabilities(self, _request: web.Request) -> web.Response:
        return json_response(
            {
                "server": "hypaware",
                "server_id": self._context.server_id,
                "api": 1,
                "extensions": _EXTENSIONS,
                "encodings": ENCODINGS,
                "limits": self._context.limits.published(),
            }
        )

    async def health(self, _request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def ready(self, _request: web.Request) -> web.Response:
        if self._context.draining:
            raise Problem(503, "draining")
        if self._context.health.problem is not None:
            await asyncio.to_thread(self._context.probe_storage)
        if (problem := self._context.health.problem) is not None:
            raise Problem(503, "storage_unavailable", reason=problem)
        return json_response({"status": "ready"})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._context.metrics.text(), headers={"Content-Type": _PROMETHEUS})
