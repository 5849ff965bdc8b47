"""Send a dead letter again: the same chunk under the same id, so that it arrives once, however often it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.errors import HypError
from hypaware.export import dead_letter_rows, sink_registry, stream_destination, stream_locks
from hypaware.export.chunks import missing_chunks, to_chunk
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, call_sink
from hypaware.export.rows import prepare_rows
from hypaware.export.sink import ChunkRefused, DestinationDenied, RangeOverlap
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import PlannedChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.driver import Driver
    from hypaware.export.rows import PreparedRows
    from hypaware.export.sink import Sink

_after_answer = faults.crash_point("export.replay.after-answer", "a dead letter arrived, the state does not know")
_after_commit = faults.crash_point("export.replay.after-commit", "a dead letter was delivered and is deleted")
_MAX_WAIT = 60.0


async def replay_letter(driver: Driver, letter_id: str) -> dict[str, Any]:
    letter = _load_letter(driver, letter_id)
    if letter.key.sink not in driver.config.sinks:
        raise HypError(f"the dead letter belongs to the sink {letter.key.sink}, which is not in the config")
    lock = await stream_locks.acquire_lock(driver.home, letter.key, _MAX_WAIT)
    if lock is None:
        raise stream_locks.busy_error(driver.home, letter.key)
    with lock:
        # Load it again: the previous holder of the lock may have delivered or dropped it.
        letter = _load_letter(driver, letter.id)
        async with sink_registry.create_sink(
            driver.home, driver.config, driver.opened.identity, letter.key.sink, driver.on_spark
        ) as sink:
            try:
                refusal = await _send(driver, sink, letter)
            except (StreamHeld, DeliveryStopped, DestinationDenied) as error:
                return {"id": letter.id, "status": "failed", "reason": str(error)}
    if refusal:
        return {"id": letter.id, "status": "refused", "reason": refusal}
    return {"id": letter.id, "status": "delivered"}


def _load_letter(driver: Driver, letter_id: str) -> DeadLetter:
    with driver.opened.store.reading() as connection:
        return dead_letters.find_letter(connection, letter_id)


async def _send(driver: Driver, sink: Sink, letter: DeadLetter) -> str | None:
    """Send the letter. Returns the reason if it was refused again, None if the destination has it now."""
    retries = RetryBudget(_MAX_WAIT)
    destination = await retries.retry(lambda: call_sink(sink.open()))
    with driver.opened.store.reading() as connection:
        stream = streams.load_stream(connection, letter.key)
        body = dead_letters.load_payload(connection, letter.id)
    assert stream is not None
    stream_destination.check_binding(driver.home, driver.opened.store, stream, destination)
    planned = PlannedChunk(letter.chunk_id, letter.incarnation, letter.after, letter.last, letter.rows)
    chunk = to_chunk(letter.key, driver.opened.gateway_id, planned)
    rows = letter.rows
    if not await retries.retry(lambda: call_sink(sink.has_chunk(chunk))):
        prepared = await _prepare_letter(driver, sink, letter, body)
        rows = len(prepared.seqs)
        if not rows and prepared.gate_report.withheld:
            raise DeliveryStopped(
                "withheld", "the privacy settings exclude its folder or session from export; the dead letter is kept"
            )
        if rows:
            acked_to = min(stream.watermark or 0, letter.after)
            try:
                await retries.retry(
                    lambda: call_sink(sink.ship(chunk, prepared.payload, acked_to), ChunkRefused, RangeOverlap)
                )
            except ChunkRefused as reason:
                _update_refusal(driver, letter, prepared.table, str(reason))
                return str(reason)
            except RangeOverlap as overlap:
                if missing_chunks(letter.key, chunk.gateway_id, planned, prepared.seqs, overlap.covered):
                    raise DeliveryStopped(
                        "destination_contradicts", "the destination has a part of the dead letter"
                    ) from None
    _after_answer()
    with driver.opened.store.transaction() as connection:
        dead_letters.drop_letter(connection, letter.id)
        streams.add_exported_rows(connection, letter.key, rows)
        streams.advance_delivery_step(connection)
    mirror.write_mirror(driver.home.mirror, driver.opened.store)
    _after_commit()
    return None


async def _prepare_letter(driver: Driver, sink: Sink, letter: DeadLetter, body: bytes | None) -> PreparedRows:
    if body is not None:
        table: pa.Table = dead_letter_rows.unpack_rows(body)
    else:
        table = await driver.lake.between(letter.key.dataset, letter.key.source, letter.after, letter.last)
    return await prepare_rows(driver.gate, sink, letter.key, table, letter.after, letter.last)


def _update_refusal(driver: Driver, letter: DeadLetter, rows: pa.Table, reason: str) -> None:
    again = dead_letter_rows.make_letter(
        letter.key, PlannedChunk(letter.id, letter.incarnation, letter.after, letter.last, letter.rows), reason
    )
    with driver.opened.store.transaction() as connection:
        dead_letters.add_letter(connection, again, dead_letter_rows.pack_rows(rows))
