"""The server's routes: `/v1` as the published contract has it with our additions, and what operators look at."""

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


def make_app(parts: Parts) -> web.Application:
    app = web.Application(middlewares=[_answering(parts)])
    identity, ingest, operators = IdentityRoutes(parts), IngestRoutes(parts), OperatorRoutes(parts)
    app.add_routes(
        [
            web.post("/v1/identity/bootstrap", identity.bootstrap),
            web.post("/v1/identity/refresh", identity.refresh),
            web.get("/v1/config", identity.config),
            web.get("/v1/capabilities", operators.capabilities),
            web.post("/v1/ingest/{signal}", ingest.batch),
            web.get("/v1/ingest/{signal}/batches/{id:.+}", ingest.landed),
            web.get("/v1/ingest/{signal}/watermark", ingest.watermark),
            web.get("/healthz", operators.healthy),
            web.get("/readyz", operators.ready),
            web.get("/metrics", operators.metrics),
        ]
    )
    return app


def _answering(parts: Parts) -> Middleware:
    """Every answer is counted, every refusal is JSON, and nothing of a fault's inside is told."""

    @web.middleware
    async def answering(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with parts.under_way.one():
                response = await handler(request)
        except Problem as problem:
            response = problem.response()
        except web.HTTPException as found:
            kind = (found.reason or "error").lower().replace(" ", "_").replace("-", "_")
            response = Problem(found.status, kind).response()
            if "Allow" in found.headers:
                response.headers["Allow"] = found.headers["Allow"]
        except HypError as error:
            log.warning("%s", error.message)
            response = unavailable("state_unavailable").response()
        except Exception:
            log.exception("a request failed")
            response = Problem(500, "internal").response()
        # What it is built with is nobody's business.
        response.headers["Server"] = "hypaware"
        parts.meters.answered(_route(request), response.status)
        return response

    return answering


def _route(request: web.Request) -> str:
    """The pattern, never the path: names of gateways' batches stay out of the metrics."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"
