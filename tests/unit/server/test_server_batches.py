"""Batches: stored once and durably, or rejected as a whole with the reason."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pyarrow as pa
import pytest

from hypaware.home import Home
from hypaware.spool import reader
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests.support.receiver import Gateway, Server, incoming_files, messages, ndjson, served, stored
from tests.support.rows import DATASET, row, rows


@pytest.mark.hazard(31)
def test_acknowledged_batch_is_in_the_spool(gateway: Gateway, home: Home) -> None:
    answer = gateway.send("b-1", gateway.rows(5))

    assert answer.status == 202
    assert stored(home) == messages(range(5))
    assert {found["gateway_id"] for found in read_spooled_rows(home, DATASET)} == {"gw-1"}
    assert incoming_files(home) == []


def test_rows_without_a_gateway_belong_to_the_sender(gateway: Gateway, home: Home) -> None:
    assert gateway.send("b-1", ndjson(rows(2))).status == 202
    assert {found["gateway_id"] for found in read_spooled_rows(home, DATASET)} == {"gw-1"}


def test_telemetry_of_a_gateway_is_stored_in_its_own_dataset(gateway: Gateway, home: Home) -> None:
    point = {"record_id": "a", "measured_at": "2026-11-17T00:00:00Z", "type": "gauge", "value": 5, "name": "cost"}

    answer = gateway.ask(
        "POST",
        "/v1/ingest/otel_metrics",
        ndjson([point]),
        Content_Type="application/x-ndjson",
        X_Hyp_Batch_Id="t-1",
    )

    assert answer.status == 202
    (found,) = read_spooled_rows(home, "otel_metrics")
    assert (found["gateway_id"], found["value"], type(found["value"])) == ("gw-1", 5.0, float)
    assert stored(home) == []


@pytest.mark.hazard(33)
def test_repeated_batch_id_is_acknowledged_and_not_stored_whatever_its_body(gateway: Gateway, home: Home) -> None:
    gateway.send("b-1", gateway.rows(5))

    for body in (gateway.rows(5), gateway.rows(3, start=100), b"this is not JSON\n", b""):
        assert gateway.send("b-1", body).status == 202
    assert gateway.send("b-1", b"garbage", Content_Encoding="gzip").status == 202
    assert stored(home) == messages(range(5))


@pytest.mark.hazard(32)
def test_batch_id_is_known_after_a_restart(home: Home) -> None:
    with served(home) as first:
        first.enrolled().send("b-1", first.enrolled().rows(5))
    with served(home) as second:
        assert second.enrolled().send("b-1", second.enrolled().rows(5)).status == 202
    assert stored(home) == messages(range(5))


def test_same_id_from_two_gateways_is_two_batches(server: Server, home: Home) -> None:
    one, other = server.enrolled("gw-1"), server.enrolled("gw-2")

    assert one.send("b-1", one.rows(2)).status == 202
    assert other.send("b-1", other.rows(2)).status == 202
    assert len(stored(home)) == 4


def test_concurrent_attempts_of_one_batch_store_it_once(gateway: Gateway, home: Home) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: gateway.send("b-1", gateway.rows(50)), range(8)))

    assert {answer.status for answer in answers} == {202}
    assert stored(home) == messages(range(50))
    assert sorted(answer.json["stored"] for answer in answers) == [0] * 7 + [50]
    assert incoming_files(home) == []


def test_concurrent_batches_are_all_stored(server: Server, home: Home) -> None:
    gateways = [server.enrolled(f"gw-{number}") for number in range(4)]

    def send(number: int) -> int:
        gateway = gateways[number % 4]
        return gateway.send(f"b-{number}", gateway.rows(3, start=3 * number)).status

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(send, range(100))) == {202}
    assert sorted(stored(home)) == sorted(messages(range(300)))
    assert incoming_files(home) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"this is not JSON", "not JSON"),
        (b"[1, 2]", "a row must be a JSON object"),
        (json.dumps(row(1, message_index="seven")).encode(), "message_index"),
        (json.dumps(row(1, no_such_column=1)).encode(), "unknown column"),
        (json.dumps(row(1, date="1999-01-01")).encode(), "date"),
        (json.dumps(row(1, _hyp_ingest_seq=7)).encode(), "set by the lake"),
        (json.dumps(row(1, gateway_id="gw-2")).encode(), "gateway_id"),
        (b"{" * 100_000, "not JSON"),
        (b'{"role":"\xff\xfe"}', "not JSON"),
        (b'{"message_index":NaN}', "not JSON"),
        (json.dumps(row(1, message_created_at="0000-01-01T00:00:00Z")).encode(), "message_created_at"),
        (json.dumps(row(1, message_index=2**70)).encode(), "message_index"),
        (json.dumps(row(1, content_text="\ud800")).encode(), ""),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
@pytest.mark.hazard(60)
def test_invalid_line_rejects_the_whole_batch_and_is_named(
    gateway: Gateway, home: Home, bad: bytes, reason: str
) -> None:
    answer = gateway.send("b-1", gateway.rows(3) + b"\n" + bad + b"\n" + gateway.rows(2, start=3))

    assert (answer.status, answer.error, answer.json["line"]) == (422, "invalid_row", 5)
    assert reason in answer.json["reason"]
    assert stored(home) == []
    assert incoming_files(home) == []
    assert gateway.send("b-1", gateway.rows(3)).status == 202, "the batch id was not used"


def test_gateway_cannot_write_as_another(server: Server, home: Home) -> None:
    one, other = server.enrolled("gw-1"), server.enrolled("gw-2")

    assert other.send("b-1", one.rows(1)).status == 422
    assert other.send("b-1", other.rows(1), X_Hyp_Gateway="gw-1").status == 403
    assert stored(home) == []


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_body_may_be_compressed(gateway: Gateway, home: Home, encoding: str) -> None:
    body = gateway.rows(100)
    packed = {
        "gzip": gzip.compress(body[:5000]) + gzip.compress(body[5000:]),
        "zstd": pa.Codec("zstd").compress(body, asbytes=True),
        "identity": body,
    }[encoding]

    reported = sha256(body).hexdigest()
    assert gateway.send("b-1", packed, Content_Encoding=encoding, X_Hyp_Content_Sha256=reported).status == 202
    assert stored(home) == messages(range(100))


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"{}\n" * 1000)[:-9], "gzip"),
        (b"not gzip at all", "gzip"),
        (pa.Codec("zstd").compress(b"{}\n" * 1000, asbytes=True)[:-3], "zstd"),
        (gzip.compress(b"{}\n") + b"and more", "gzip"),
        (b"{}", "br"),
        (b"{}", "gzip, gzip"),
    ],
    # gzip stores the time: pytest workers that collect in different seconds would see different parameters.
    ids=["cut off", "not packed", "zstd cut off", "more behind it", "unknown", "twice"],
)
@pytest.mark.hazard(60)
def test_body_that_cannot_be_decompressed_is_rejected(gateway: Gateway, home: Home, body: bytes, encoding: str) -> None:
    answer = gateway.send("b-1", body, Content_Encoding=encoding)

    assert (answer.status, answer.error) == (400, "bad_encoding")
    assert stored(home) == []


def test_body_with_a_wrong_hash_is_rejected(gateway: Gateway, home: Home) -> None:
    answer = gateway.send("b-1", gateway.rows(2), X_Hyp_Content_Sha256="0" * 64)

    assert (answer.status, answer.error) == (400, "content_mismatch")
    assert stored(home) == []


def test_empty_batch_is_acknowledged_and_stores_nothing(server: Server, gateway: Gateway, home: Home) -> None:
    assert gateway.send("b-1", b"", **gateway.says()).status == 202
    assert gateway.send("b-2", b"\n \n").status == 202
    assert server.plain().send("b-3", b"").status == 202
    assert stored(home) == []
    assert gateway.landed("b-1")


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Content_Type": "application/json"}, "bad_content_type"),
        ({"Content_Type": ""}, "bad_content_type"),
        ({"X_Hyp_Batch_Id": ""}, "bad_batch_id"),
        ({"X_Hyp_Batch_Id": "x" * 201}, "bad_batch_id"),
        ({"X_Hyp_Seq_Range": "5-5"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "7-5"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "-5"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "0-9999999999999999999"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "0-99999999999999999999"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "0-5"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "0-5", "X_Hyp_Source": "claude"}, "bad_header"),
        ({"X_Hyp_Seq_Range": "0-5", "X_Hyp_Incarnation": "i"}, "bad_header"),
        ({"X_Hyp_Acked_To": "many"}, "bad_header"),
        ({"X_Hyp_Content_Sha256": "short"}, "bad_header"),
        ({"X_Hyp_Incarnation": "%00"}, "bad_header"),
        ({"X_Hyp_Incarnation": "%ff"}, "bad_header"),
    ],
)
def test_invalid_headers_are_rejected(gateway: Gateway, home: Home, headers: dict[str, str], error: str) -> None:
    answer = gateway.send("b-1", gateway.rows(1), **headers)

    assert (answer.status, answer.error) == (400, error)
    assert stored(home) == []


def test_signal_without_a_dataset_is_unknown(gateway: Gateway) -> None:
    for signal in ("logs", "traces", "metrics", "ai_gateway_messages", "..%2F..", "%00"):
        answer = gateway.ask("POST", f"/v1/ingest/{signal}", b"", Content_Type="application/x-ndjson")
        assert (answer.status, answer.error) == (404, "unknown_signal"), signal


def test_local_producers_can_use_the_spool_of_a_server(gateway: Gateway, home: Home) -> None:
    with Spool(home) as spool:
        spool.append(DATASET, rows(3, start=100))
    gateway.send("b-1", gateway.rows(2))

    waiting = reader.summarize_spool(home, DATASET)
    assert (waiting.segments, waiting.rows) == (2, 5)
    assert sorted(stored(home)) == sorted([*messages(range(2)), *messages(range(100, 103))])
