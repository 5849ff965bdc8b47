"""`/v1/identity/*` and `/v1/config`: how a gateway comes to its token, and keeps it."""

from __future__ import annotations

from aiohttp import web

from hypaware.server import body
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, json_response
from hypaware.server.signing import Signed


class IdentityRoutes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def bootstrap(self, request: web.Request) -> web.Response:
        self._parts.enrolments.take(request.remote or "")
        asked = await body.json_object(request, self._parts.limits.idle_seconds)
        return _signed(await self._parts.access.enrol(asked))

    async def refresh(self, request: web.Request) -> web.Response:
        caller = await self._parts.access.caller(request)
        self._parts.pace.take(caller.key)
        return _signed(await self._parts.access.renew(caller))

    async def config(self, request: web.Request) -> web.Response:
        """Gateways are configured where they are; the contract's answer for that is 404."""
        await self._parts.access.caller(request)
        raise Problem(404, "no_config")


def _signed(token: Signed) -> web.Response:
    return json_response({"jwt": token.jwt, "expires_at": token.expires_at}, headers={"Cache-Control": "no-store"})
