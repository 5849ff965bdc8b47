"""`/v1/ingest/*`: batches in, and what became of them. A gateway is told of its own deliveries and of nothing else."""

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
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def batch(self, request: web.Request) -> web.Response:
        parts = self._parts
        if parts.draining:
            raise unavailable("draining")
        caller = await parts.access.caller(request)
        arrival = Arrival(caller, self._dataset(request), headers.read(request.headers))
        parts.pace.take(caller.key)
        with parts.at_once.one(caller.key), parts.room.share() as share:
            held = await body.received(request, parts.limits, share)
            parts.meters.received(len(held))
            outcome = await parts.receiver.receive(arrival, held)
        return self._told(outcome)

    async def landed(self, request: web.Request) -> web.Response:
        sender = await self._sender(request, headers.incarnation(request.headers))
        batch_id = headers.checked("the batch id", request.match_info["id"], kind="bad_batch_id")

        def look() -> bool:
            with self._parts.store.reading() as connection:
                is_known = ledger.is_known if sender.incarnation else ledger.is_known_in_any_life
                return is_known(connection, sender, batch_id)

        if not await asyncio.to_thread(look):
            raise Problem(404, "unknown_batch")
        return json_response({"batch_id": batch_id})

    async def watermark(self, request: web.Request) -> web.Response:
        asked = request.query.get("incarnation") or headers.incarnation(request.headers)
        sender = await self._sender(request, asked)
        if not asked or "source" not in request.query:
            raise bad_request("bad_request", "a watermark is that of a source, and of an incarnation")
        headers.checked("incarnation", asked, kind="bad_request")
        source = headers.source(request.query["source"])

        def look() -> Covered:
            with self._parts.store.reading() as connection:
                return ledger.covered(ledger.ranges(connection, sender, source))

        found = await asyncio.to_thread(look)
        return json_response({"last": _sequence(found.last), "holes": _holes(found)})

    async def _sender(self, request: web.Request, incarnation: str) -> Sender:
        caller: Caller = await self._parts.access.caller(request)
        self._parts.pace.take(caller.key)
        dataset = self._dataset(request)
        if caller.gateway_id is None:
            raise Problem(403, "no_gateway", reason="this token was signed for a client that did not say who it is")
        return Sender(caller.tenant, caller.gateway_id, incarnation, dataset.name)

    def _dataset(self, request: web.Request) -> Dataset:
        found = self._parts.signals.get(request.match_info["signal"])
        if found is None:
            raise Problem(404, "unknown_signal")
        return found

    def _told(self, outcome: Outcome) -> web.Response:
        count = self._parts.meters.batch
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
    """Beyond 2^53 it travels as text, so that readers in JavaScript keep its digits."""
    return value if value <= _MAX_SAFE else str(value)
