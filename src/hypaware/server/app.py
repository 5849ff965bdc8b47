"""The server's routes: `/v1` of the published contract with our additions, and the operators' endpoints."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hypaware.errors import HypError
from hypaware.server.identity import IdentityRoutes
from hypaware.server.ingest import IngestRoutes
from hypaware.server.operators import OperatorRoutes
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, unavailable
from hypaware.server.trouble import log


def make_app(context: Parts) -> web.Application:
    app = web.Application(middlewares=[_middleware(context)])
    identity, ingest, operators = IdentityRoutes(context), IngestRoutes(context), OperatorRoutes(context)
    app.add_routes(
        [
            web.post("/v1/identity/bootstrap", identity.bootstrap),
            web.post("/v1/identity/refresh", identity.refresh),
            web.get("/v1/config", identity.config),
            web.get("/v1/capabilities", operators.capabilities),
            web.post("/v1/ingest/{signal}", ingest.batch),
            web.get("/v1/ingest/{signal}/batches/{id:.+}", ingest.find_batch),
            web.get("/v1/ingest/{signal}/watermark", ingest.watermark),
            web.get("/healthz", operators.health),
            web.get("/readyz", operators.ready),
            web.get("/metrics", operators.metrics),
        ]
    )
    return app


def _middleware(context: Parts) -> Middleware:
    """Return the middleware that counts responses and turns errors into JSON without internal details."""

    @web.middleware
    async def respond(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with context.in_flight.one():
                response = await handler(request)
        except Problem as problem:
            response = problem.response()
        except web.HTTPException as error:
            kind = (error.reason or "error").lower().replace(" ", "_").replace("-", "_")
            response = Problem(error.status, kind).response()
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except HypError as error:
            log.warning("%s", error.message)
            response = unavailable("state_unavailable").response()
        except Exception:
            log.exception("a request failed")
            response = Problem(500, "internal").response()
        # Do not disclose the HTTP library and its version.
        response.headers["Server"] = "hypaware"
        context.metrics.answered(_route(request), response.status)
        return response

    return respond


def _route(request: web.Request) -> str:
    """Return the route's pattern. The path would put batch ids into the metrics."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"
