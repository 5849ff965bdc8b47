"""`/v1/identity/*` and `/v1/config`: how a gateway obtains and renews its signed token."""

from __future__ import annotations

from aiohttp import web

from hypaware.server import body
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, json_response
from hypaware.server.signing import Signed


class IdentityRoutes:
    def __init__(self, context: Parts) -> None:
        self._context = context

    async def bootstrap(self, request: web.Request) -> web.Response:
        self._context.enrolment_rate.take(request.remote or "")
        fields = await body.json_object(request, self._context.limits.idle_seconds)
        return _token_response(await self._context.auth.enrol(fields))

    async def refresh(self, request: web.Request) -> web.Response:
        caller = await self._context.auth.authenticate(request)
        self._context.request_rate.take(caller.key)
        return _token_response(await self._context.auth.renew(caller))

    async def config(self, request: web.Request) -> web.Response:
        """Respond 404, the contract's answer if gateways are configured locally."""
        await self._context.auth.authenticate(request)
        raise Problem(404, "no_config")


def _token_response(token: Signed) -> web.Response:
    return json_response({"jwt": token.jwt, "expires_at": token.expires_at}, headers={"Cache-Control": "no-store"})
