"""Send a dead letter again: the same chunk under the same id, so that it arrives once, however often it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.errors import HypError
from hypaware.export import bearings, letters, locks, plan
from hypaware.export.shipping import Held
from hypaware.export.sink import Denied, Overlap, Refused
from hypaware.export.supply import ready
from hypaware.export.waiting import GaveUp, Patience
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import PlannedChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.driver import Driver
    from hypaware.export.sink import Sink
    from hypaware.export.supply import Supply

_after_answer = faults.point("export.replay.after-answer", "a dead letter arrived, the state does not know")
_after_commit = faults.point("export.replay.after-commit", "a dead letter was delivered and is deleted")

_MAX_WAIT = 60.0


async def replay(driver: Driver, letter_id: str) -> dict[str, Any]:
    letter = _named(driver, letter_id)
    if letter.key.sink not in driver.config.sinks:
        raise HypError(f"the dead letter belongs to the sink {letter.key.sink}, which is not in the config")
    lock = await locks.waited_for(driver.home, letter.key, _MAX_WAIT)
    if lock is None:
        raise locks.busy(driver.home, letter.key)
    with lock:
        # Load it again: the previous holder of the lock may have delivered or dropped it.
        letter = _named(driver, letter.id)
        async with driver.create_sink(letter.key.sink) as sink:
            try:
                refusal = await _send(driver, sink, letter)
            except (Held, GaveUp, Denied) as error:
                return {"id": letter.id, "status": "failed", "reason": str(error)}
    if refusal:
        return {"id": letter.id, "status": "refused", "reason": refusal}
    return {"id": letter.id, "status": "delivered"}


def _named(driver: Driver, letter_id: str) -> DeadLetter:
    with driver.opened.store.reading() as connection:
        return dead_letters.get(connection, letter_id)


async def _send(driver: Driver, sink: Sink, letter: DeadLetter) -> str | None:
    """Send the letter. Returns the reason if it was refused again, None if the destination has it now."""
    retries = Patience(_MAX_WAIT)
    destination = await retries.retry(sink.open)
    with driver.opened.store.reading() as connection:
        stream = streams.load(connection, letter.key)
        body = dead_letters.payload(connection, letter.id)
    assert stream is not None
    bearings.check_binding(driver.home, driver.opened.store, stream, destination)
    planned = PlannedChunk(letter.chunk_id, letter.incarnation, letter.after, letter.last, letter.rows)
    chunk = plan.as_chunk(letter.key, driver.opened.gateway_id, planned)
    rows = letter.rows
    if not await retries.retry(lambda: sink.has_chunk(chunk)):
        prepared = await _supply(driver, sink, letter, body)
        rows = len(prepared.seqs)
        if not rows and prepared.gate_report.withheld:
            raise GaveUp(
                "withheld", "the privacy settings exclude its folder or session from export; the dead letter is kept"
            )
        if rows:
            acked_to = min(stream.watermark or 0, letter.after)
            try:
                await retries.retry(lambda: sink.ship(chunk, prepared.payload, acked_to))
            except Refused as reason:
                _still_dead(driver, letter, prepared.table, str(reason))
                return str(reason)
            except Overlap as overlap:
                if plan.lacking(letter.key, chunk.gateway_id, planned, prepared.seqs, overlap.covered):
                    raise GaveUp("destination_contradicts", "the destination has a part of the dead letter") from None
    _after_answer()
    with driver.opened.store.transaction() as connection:
        dead_letters.drop(connection, letter.id)
        streams.add_exported(connection, letter.key, rows)
        streams.stepped(connection)
    mirror.write(driver.home.mirror, driver.opened.store)
    _after_commit()
    return None


async def _supply(driver: Driver, sink: Sink, letter: DeadLetter, body: bytes | None) -> Supply:
    if body is not None:
        table: pa.Table = letters.unpacked(body)
    else:
        table = await driver.lake.between(letter.key.dataset, letter.key.source, letter.after, letter.last)
    return await ready(driver.gate, sink, letter.key.dataset, table, letter.after, letter.last)


def _still_dead(driver: Driver, letter: DeadLetter, rows: pa.Table, reason: str) -> None:
    again = letters.of_chunk(
        letter.key, PlannedChunk(letter.id, letter.incarnation, letter.after, letter.last, letter.rows), reason
    )
    with driver.opened.store.transaction() as connection:
        dead_letters.bury(connection, again, letters.packed(rows))
