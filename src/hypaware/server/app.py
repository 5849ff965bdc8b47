"""The server's HTTP endpoints.

- `/v1/identity/*` and `/v1/config`: a gateway obtains and renews its signed token.
- `/v1/ingest/*`: receive batches and report their outcome. A gateway can query only its own deliveries.
- `/v1/capabilities`, `/healthz`, `/readyz`, `/metrics`: without authentication.

`/v1` is the published contract with our additions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import TransferEncodingError
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_exceptions import HTTPException

from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.server import auth, http
from hypaware.server.auth import Authenticator, Caller, SignedToken, TokenSigner
from hypaware.server.batch_storage import BatchStorage, FileStorage, ObjectStorage
from hypaware.server.batches import (
    AlreadyStored,
    BatchOutcome,
    BatchReceiver,
    GroupCommit,
    IncomingBatch,
    OverlappingBatch,
    StoredBatch,
)
from hypaware.server.connections import ConnectionLimit
from hypaware.server.health import ServerMetrics, StorageHealth, log
from hypaware.server.http import ENCODINGS, HttpProblem, bad_request, json_response, too_large, unavailable
from hypaware.server.limits import ByteBudget, ConcurrencyLimit, InFlight, RateLimiter, Reservation, ServerLimits
from hypaware.spool.received import open_received
from hypaware.state import ledger
from hypaware.state.home_opener import OpenHome
from hypaware.state.ledger import BatchSender, Coverage

# The signal of the published contract, and those of datasets that it does not have. Its other signals are its own
# telemetry, in a form of its own.
SIGNALS = {"proxy": "ai_gateway_messages", **{name: name for name in ("otel_logs", "otel_metrics", "otel_spans")}}
_IGNORED_SIGNALS = ("logs", "traces", "metrics")
_MAX_JSON = 16 << 10
_MAX_JSON_INTEGER = 2**53 - 1
_EXTENSIONS = ("batches", "watermark", "ranges", "dedupe")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class ServerContext:
    """The components of a running server."""

    def __init__(self, home_open: OpenHome, limits: ServerLimits, *, refresh_seconds: float = 1.0) -> None:
        self.home, self.store, self.limits = home_open.home, home_open.store, limits
        self.metrics, self.health = ServerMetrics(), StorageHealth()
        self.signals = {signal: datasets.get(name) for signal, name in SIGNALS.items()}
        names = [dataset.name for dataset in self.signals.values()]
        self.storage = _open_storage(home_open, names, limits)
        self.server_id = auth.server_id(self.home, self.store)
        signer = TokenSigner(auth.signing_key(self.home, self.store))
        self.auth = Authenticator(self.store, signer, refresh_seconds=refresh_seconds)
        commit = GroupCommit(self.store, self.storage, self.metrics, self.health)
        self.receiver = BatchReceiver(self.store, self.storage, commit, limits, self.health)
        self.body_memory = ByteBudget(limits.held_bytes)
        self.concurrency = ConcurrencyLimit(limits.requests_at_once)
        self.request_rate = RateLimiter(limits.requests_per_second, 2 * limits.requests_per_second)
        self.enrolment_rate = RateLimiter(limits.enrolments_per_minute / 60, limits.enrolments_per_minute)
        self.connections = ConnectionLimit(limits.connections)
        self.in_flight = InFlight()
        self.draining = False
        watch = self.metrics.watch
        watch("hyp_server_waiting_batches", "Durable batches waiting for their commit", lambda: commit.waiting)
        watch("hyp_server_connections", "Open connections", lambda: self.connections.count)
        watch("hyp_server_held_bytes", "Bytes of request bodies in memory", lambda: self.body_memory.reserved)

    def probe_storage(self) -> None:
        self.health.probe(self.store, self.storage.probe)


def _open_storage(home_open: OpenHome, datasets: Sequence[str], limits: ServerLimits) -> BatchStorage:
    objects = open_received(home_open.home, home_open.store)
    if objects is None:
        return FileStorage(home_open.home, home_open.store, datasets, limits.keep_free_bytes)
    storage = ObjectStorage(objects)
    storage.probe()
    return storage


def make_app(context: ServerContext) -> web.Application:
    app = web.Application(middlewares=[_middleware(context)])
    routes = _Routes(context)
    app.add_routes(
        [
            web.post("/v1/identity/bootstrap", routes.bootstrap),
            web.post("/v1/identity/refresh", routes.refresh),
            web.get("/v1/config", routes.config),
            web.get("/v1/capabilities", routes.capabilities),
            web.post("/v1/ingest/{signal}", routes.batch),
            web.get("/v1/ingest/{signal}/batches/{id:.+}", routes.find_batch),
            web.get("/v1/ingest/{signal}/watermark", routes.watermark),
            web.get("/healthz", routes.health),
            web.get("/readyz", routes.ready),
            web.get("/metrics", routes.metrics),
        ]
    )
    return app


def _middleware(context: ServerContext) -> Middleware:
    """Return the middleware that counts responses and turns errors into JSON without internal details."""

    @web.middleware
    async def respond(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with context.in_flight.one(), context.connections.answering(request.transport):
                response = await handler(request)
        except HttpProblem as problem:
            response = problem.response()
        except web.HTTPException as error:
            kind = (error.reason or "error").lower().replace(" ", "_").replace("-", "_")
            response = HttpProblem(error.status, kind).response()
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except HypError as error:
            context.health.failed(error)
            response = unavailable("state_unavailable").response()
        except Exception:
            log.exception("a request failed")
            response = HttpProblem(500, "internal").response()
        # Do not disclose the HTTP library and its version.
        response.headers["Server"] = "hypaware"
        # The route's pattern: the path would put batch ids into the metrics.
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "none"
        context.metrics.requests.labels(route, str(response.status)).inc()
        return response

    return respond


class _Routes:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def batch(self, request: web.Request) -> web.Response:
        context = self._context
        if context.draining:
            raise unavailable("draining")
        caller = await context.auth.authenticate(request)
        if caller.is_stamped and request.match_info["signal"] in _IGNORED_SIGNALS:
            return await self._ignore(request, caller)
        incoming = IncomingBatch(caller, self._dataset(request), http.read_batch_headers(request.headers))
        context.request_rate.take(caller.gateway_id)
        with context.concurrency.one(caller.gateway_id), context.body_memory.reserve() as reservation:
            content = await read_body(request, context.limits, reservation)
            context.metrics.body_bytes.inc(len(content))
            outcome = await context.receiver.receive(incoming, content)
        return self._response(outcome)

    async def _ignore(self, request: web.Request, caller: Caller) -> web.Response:
        """Acknowledge what this server does not store. A client of the published contract repeats every refused batch
        forever, and reports that its deliveries are incomplete."""
        context = self._context
        context.request_rate.take(caller.gateway_id)
        with context.concurrency.one(caller.gateway_id), context.body_memory.reserve() as reservation:
            await read_body(request, context.limits, reservation)
        context.metrics.batches.labels("ignored").inc()
        return json_response({"stored": 0, "ignored": True}, 202)

    async def find_batch(self, request: web.Request) -> web.Response:
        sender = await self._sender(request, http.read_incarnation(request.headers))
        batch_id = http.check_name("the batch id", request.match_info["id"], kind="bad_batch_id")

        def is_stored() -> bool:
            with self._context.store.reading() as connection:
                is_known = ledger.is_known_batch if sender.incarnation else ledger.is_known_in_any_incarnation
                return is_known(connection, sender, batch_id)

        if not await asyncio.to_thread(is_stored):
            raise HttpProblem(404, "unknown_batch")
        return json_response({"batch_id": batch_id})

    async def watermark(self, request: web.Request) -> web.Response:
        incarnation = request.query.get("incarnation") or http.read_incarnation(request.headers)
        sender = await self._sender(request, incarnation)
        if not incarnation or "source" not in request.query:
            raise bad_request("bad_request", "the query needs a source and an incarnation")
        http.check_name("incarnation", incarnation, kind="bad_request")
        source = http.check_source(request.query["source"])

        def read_covered() -> Coverage:
            with self._context.store.reading() as connection:
                return ledger.compute_coverage(ledger.delivered_ranges(connection, sender, source))

        covered = await asyncio.to_thread(read_covered)
        return json_response({"last": _json_sequence(covered.last), "holes": _holes(covered)})

    async def _sender(self, request: web.Request, incarnation: str) -> BatchSender:
        caller: Caller = await self._context.auth.authenticate(request)
        self._context.request_rate.take(caller.gateway_id)
        dataset = self._dataset(request)
        return BatchSender(caller.tenant, caller.gateway_id, incarnation, dataset.name)

    def _dataset(self, request: web.Request) -> Dataset:
        dataset = self._context.signals.get(request.match_info["signal"])
        if dataset is None:
            raise HttpProblem(404, "unknown_signal")
        return dataset

    def _response(self, outcome: BatchOutcome) -> web.Response:
        metrics = self._context.metrics
        match outcome:
            case StoredBatch(rows):
                metrics.batches.labels("stored").inc()
                metrics.rows.inc(rows)
                return json_response({"stored": rows}, 202)
            case AlreadyStored():
                metrics.batches.labels("duplicate").inc()
                return json_response({"stored": 0, "duplicate": True}, 202)
            case OverlappingBatch(covered):
                metrics.batches.labels("overlap").inc()
                raise HttpProblem(409, "range_overlap", covered_to=_json_sequence(covered.last), holes=_holes(covered))
            case HttpProblem() as problem:
                metrics.batches.labels("refused" if problem.status < 500 else "failed").inc()
                raise problem

    async def bootstrap(self, request: web.Request) -> web.Response:
        self._context.enrolment_rate.take(request.remote or "")
        fields = await read_json(request, self._context.limits.idle_seconds)
        return _token_response(await asyncio.to_thread(self._context.auth.enrol, fields))

    async def refresh(self, request: web.Request) -> web.Response:
        caller = await self._context.auth.authenticate(request)
        self._context.request_rate.take(caller.gateway_id)
        return _token_response(await self._context.auth.renew(caller))

    async def config(self, request: web.Request) -> web.Response:
        """Respond 404, the contract's answer if gateways are configured locally."""
        await self._context.auth.authenticate(request)
        raise HttpProblem(404, "no_config")

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
            raise HttpProblem(503, "draining")
        if self._context.health.problem is not None:
            await asyncio.to_thread(self._context.probe_storage)
        if (problem := self._context.health.problem) is not None:
            raise HttpProblem(503, "storage_unavailable", reason=problem)
        return json_response({"status": "ready"})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._context.metrics.text(), headers={"Content-Type": _PROMETHEUS})


def _holes(covered: Coverage) -> list[list[int | str]]:
    return [[_json_sequence(hole.after), _json_sequence(hole.last)] for hole in covered.holes]


def _json_sequence(value: int) -> int | str:
    """Return the sequence for JSON: as text beyond 2^53, which JavaScript numbers cannot represent exactly."""
    return value if value <= _MAX_JSON_INTEGER else str(value)


async def read_body(request: web.Request, limits: ServerLimits, reservation: Reservation) -> bytes:
    """Read the whole body, reserving memory as it arrives."""
    limit = limits.max_body_bytes
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.body_seconds
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout_at(min(end, loop.time() + limits.idle_seconds)) as timeout:
            while piece := await request.content.readany():
                pieces.append(piece)
                size = reservation.bytes + len(piece)
                if size > limit:
                    raise too_large(limit)
                reservation.grow_to(size)
                timeout.reschedule(min(end, loop.time() + limits.idle_seconds))
    except TimeoutError:
        raise HttpProblem(408, "body_too_slow") from None
    except (ConnectionError, web.RequestPayloadError, TransferEncodingError) as error:
        raise bad_request("body_incomplete", type(error).__name__) from None
    return b"".join(pieces)


def _token_response(token: SignedToken) -> web.Response:
    return json_response({"jwt": token.jwt, "expires_at": token.expires_at}, headers={"Cache-Control": "no-store"})


async def read_json(request: web.Request, seconds: float) -> dict[str, Any]:
    """Read a small JSON body."""
    if (request.content_length or 0) > _MAX_JSON:
        raise too_large(_MAX_JSON)
    try:
        async with asyncio.timeout(seconds):
            raw = await request.content.read(_MAX_JSON + 1)
            while len(raw) <= _MAX_JSON and (piece := await request.content.read(_MAX_JSON + 1)):
                raw += piece
    except TimeoutError:
        raise HttpProblem(408, "body_too_slow") from None
    except (ConnectionError, HTTPException, web.RequestPayloadError) as error:
        raise bad_request("body_incomplete", type(error).__name__) from None
    if len(raw) > _MAX_JSON:
        raise too_large(_MAX_JSON)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise bad_request("bad_json", "the body is not a JSON object")
    return value
