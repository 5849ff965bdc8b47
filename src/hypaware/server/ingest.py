"""`/v1/ingest/*`: receive batches and report their outcome. A gateway can query only its own deliveries."""

from __future__ import annotations

import asyncio

from aiohttp import web

from hypaware.model.datasets import Dataset
from hypaware.server import body, headers
from hypaware.server.arrivals import Arrival, Known, Outcome, Overlapping, Stored
from hypaware.server.callers import Caller
from hypaware.server.parts import Parts
from hypaware.server.problem import Problem, bad_request, json_response, unavailable
from hypaware.state import ledger
from hypaware.state.ledger import Covered, Sender

_MAX_SAFE = 2**53 - 1


class IngestRoutes:
    def __init__(self, context: Parts) -> None:
        self._context = context

    async def batch(self, request: web.Request) -> web.Response:
        context = self._context
        if context.draining:
            raise unavailable("draining")
        caller = await context.auth.authenticate(request)
        incoming = Arrival(caller, self._dataset(request), headers.read(request.headers))
        context.request_rate.take(caller.key)
        with context.concurrency.one(caller.key), context.body_memory.reserve() as reservation:
            content = await body.received(request, context.limits, reservation)
            context.metrics.received(len(content))
            outcome = await context.receiver.receive(incoming, content)
        return self._response(outcome)

    async def find_batch(self, request: web.Request) -> web.Response:
        sender = await self._sender(request, headers.incarnation(request.headers))
        batch_id = headers.checked("the batch id", request.match_info["id"], kind="bad_batch_id")

        def is_stored() -> bool:
            with self._context.store.reading() as connection:
                is_known = ledger.is_known if sender.incarnation else ledger.is_known_in_any_life
                return is_known(connection, sender, batch_id)

        if not await asyncio.to_thread(is_stored):
            raise Problem(404, "unknown_batch")
        return json_response({"batch_id": batch_id})

    async def watermark(self, request: web.Request) -> web.Response:
        incarnation = request.query.get("incarnation") or headers.incarnation(request.headers)
        sender = await self._sender(request, incarnation)
        if not incarnation or "source" not in request.query:
            raise bad_request("bad_request", "the query needs a source and an incarnation")
        headers.checked("incarnation", incarnation, kind="bad_request")
        source = headers.source(request.query["source"])

        def read_covered() -> Covered:
            with self._context.store.reading() as connection:
                return ledger.covered(ledger.ranges(connection, sender, source))

        covered = await asyncio.to_thread(read_covered)
        return json_response({"last": _sequence(covered.last), "holes": _holes(covered)})

    async def _sender(self, request: web.Request, incarnation: str) -> Sender:
        caller: Caller = await self._context.auth.authenticate(request)
        self._context.request_rate.take(caller.key)
        dataset = self._dataset(request)
        if caller.gateway_id is None:
            raise Problem(403, "no_gateway", reason="this token was signed for a client without a gateway id")
        return Sender(caller.tenant, caller.gateway_id, incarnation, dataset.name)

    def _dataset(self, request: web.Request) -> Dataset:
        dataset = self._context.signals.get(request.match_info["signal"])
        if dataset is None:
            raise Problem(404, "unknown_signal")
        return dataset

    def _response(self, outcome: Outcome) -> web.Response:
        count = self._context.metrics.batch
        match outcome:
            case Stored(rows):
                count("stored", rows)
                return json_response({"stored": rows}, 202)
            case Known():
                count("duplicate")
                return json_response({"stored": 0, "duplicate": True}, 202)
            case Overlapping(covered):
                count("overlap")
                raise Problem(409, "range_overlap", covered_to=_sequence(covered.last), holes=_holes(covered))
            case Problem() as problem:
                count("refused" if problem.status < 500 else "failed")
                raise problem


def _holes(covered: Covered) -> list[list[int | str]]:
    return [[_sequence(hole.after), _sequence(hole.last)] for hole in covered.holes]


def _sequence(value: int) -> int | str:
    """Return the sequence for JSON: as text beyond 2^53, which JavaScript numbers cannot represent exactly."""
    return value if value <= _MAX_SAFE else str(value)
