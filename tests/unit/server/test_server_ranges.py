"""Ranges: the watermark of each stream, and protection against rows repeated under another id."""

from __future__ import annotations

import pytest

from hypaware.home import Home
from tests.support.receiver import Gateway, Server, incoming_files, messages, served, stored

OTHER_LIFE = "f" * 32


def test_watermark_is_the_end_of_the_delivered_range(gateway: Gateway) -> None:
    assert gateway.watermark() == {"last": 0, "holes": []}
    gateway.deliver(0, 10)
    gateway.deliver(10, 25)
    assert gateway.watermark() == {"last": 25, "holes": []}
    assert gateway.watermark("codex") == {"last": 0, "holes": []}


def test_watermark_uses_the_header_incarnation_unless_the_query_names_another(gateway: Gateway) -> None:
    gateway.deliver(0, 10)
    requested = gateway.ask("GET", "/v1/ingest/proxy/watermark?source=claude", **gateway.says())
    assert requested.json["last"] == 10
    other = gateway.reborn(OTHER_LIFE)
    path = f"/v1/ingest/proxy/watermark?source=claude&incarnation={gateway.life}"
    assert other.ask("GET", path, **other.says()).json["last"] == 10
    assert gateway.ask("GET", "/v1/ingest/proxy/watermark?source=claude").status == 400
    assert gateway.ask("GET", "/v1/ingest/proxy/watermark", **gateway.says()).status == 400
    for query in ("source=%00", "source=", "source=%ff%ed%a0%80&incarnation=%00", f"source={'x' * 501}"):
        assert gateway.ask("GET", f"/v1/ingest/proxy/watermark?{query}", **gateway.says()).status == 400, query


@pytest.mark.hazard(32)
def test_new_id_for_delivered_rows_is_rejected_with_the_covered_range(gateway: Gateway, home: Home) -> None:
    gateway.deliver(0, 10)
    gateway.deliver(10, 20)
    for after, last in ((0, 10), (5, 15), (15, 30), (0, 100), (19, 20)):
        answer = gateway.deliver(after, last, id=f"new {after}-{last}")
        assert (answer.status, answer.error) == (409, "range_overlap")
        assert (answer.json["covered_to"], answer.json["holes"]) == (20, [])
    assert stored(home) == messages(range(1, 21))
    assert incoming_files(home) == []
    assert gateway.deliver(20, 30, id="new 20-30").status == 202


def test_overlap_response_lists_the_missing_parts_of_the_range(gateway: Gateway) -> None:
    gateway.deliver(10, 20)
    gateway.deliver(30, 40)
    gateway.deliver(50, 60)

    answer = gateway.deliver(5, 35, id="new")
    assert (answer.status, answer.json["covered_to"]) == (409, 60)
    assert answer.json["holes"] == [[5, 10], [20, 30]]
    assert gateway.watermark() == {"last": 60, "holes": [[0, 10], [20, 30], [40, 50]]}


def test_replayed_dead_letter_fills_its_hole(gateway: Gateway, home: Home) -> None:
    gateway.deliver(0, 10)
    gateway.deliver(15, 20)
    assert gateway.watermark()["holes"] == [[10, 15]]

    assert gateway.deliver(12, 13, X_Hyp_Acked_To="20").status == 202
    assert gateway.watermark()["holes"] == [[10, 12], [13, 15]]
    assert gateway.deliver(10, 12).status == 202
    assert gateway.deliver(13, 15).status == 202
    assert gateway.watermark() == {"last": 20, "holes": []}
    assert sorted(stored(home)) == sorted(messages(range(1, 21)))


@pytest.mark.hazard(32)
def test_ids_are_removed_only_below_the_senders_acknowledged_sequence(gateway: Gateway, home: Home) -> None:
    gateway.deliver(0, 10, id="first")
    gateway.deliver(10, 20, id="second")
    gateway.deliver(0, 5, "codex", id="of codex")
    gateway.reborn(OTHER_LIFE).deliver(0, 10, id="of another life")
    gateway.deliver(20, 30, id="third", X_Hyp_Acked_To="10")

    assert not gateway.landed("first")
    assert all(gateway.landed(known) for known in ("second", "third", "of codex"))
    assert gateway.reborn(OTHER_LIFE).landed("of another life")
    gateway.deliver(30, 40, id="fourth", X_Hyp_Acked_To="40")
    assert gateway.landed("fourth"), "a batch does not remove its own id"
    assert gateway.deliver(0, 10, id="first").status == 409, "its range is still known"
    assert gateway.deliver(10, 20, id="second").status == 409
    assert len(stored(home)) == 55


def test_ids_of_a_client_without_ranges_are_never_removed(gateway: Gateway, home: Home) -> None:
    gateway.send("no range", gateway.rows(3, start=1_000))
    gateway.deliver(0, 10, X_Hyp_Acked_To="10")
    gateway.deliver(10, 20, X_Hyp_Acked_To="999999")

    assert gateway.send("no range", gateway.rows(3, start=1_000)).json["stored"] == 0
    assert len(stored(home)) == 23


@pytest.mark.hazard(71)
def test_incarnations_of_a_gateway_have_separate_ranges(gateway: Gateway, home: Home) -> None:
    """Two copies of a home assign the same sequences to different rows; they must not be confused."""
    copy = gateway.reborn(OTHER_LIFE)
    gateway.deliver(0, 10, id="one id")

    assert copy.watermark() == {"last": 0, "holes": []}
    assert copy.send("one id", copy.rows(5, start=500), **copy.says(), X_Hyp_Seq_Range="0-5").json["stored"] == 5
    assert copy.watermark()["last"] == 5
    assert gateway.watermark()["last"] == 10
    assert len(stored(home)) == 15


def test_gateways_have_separate_ranges(server: Server) -> None:
    one, other = server.enrolled("gw-1"), server.enrolled("gw-2")
    one.deliver(0, 10)

    assert other.watermark() == {"last": 0, "holes": []}
    assert not other.landed(f"{one.life}/claude/0-10")
    assert other.deliver(0, 10).status == 202


@pytest.mark.hazard(25)
def test_source_names_are_compared_exactly(gateway: Gateway) -> None:
    names = ["a b", "a_b", "a%20b", "a+b", "A b", " a b", "ä/../b", "b\n", "'; DROP TABLE delivered; --"]
    for number, name in enumerate(names, 1):
        assert gateway.deliver(0, number, name).status == 202, name
    assert [gateway.watermark(name)["last"] for name in names] == list(range(1, len(names) + 1))


@pytest.mark.hazard(95)
def test_gateway_that_enrols_with_another_token_keeps_its_ranges(home: Home) -> None:
    with served(home) as first:
        first.enrolled().deliver(0, 10, id="one")
    with served(home) as second:
        again = second.enrolled(token=second.token)
        assert again.watermark()["last"] == 10
        assert again.landed("one")
        assert again.deliver(0, 10, id="one").json["stored"] == 0
        assert again.deliver(0, 10, id="two").status == 409
    assert len(stored(home)) == 10


def test_sequences_beyond_javascript_precision_are_sent_as_text(gateway: Gateway) -> None:
    low, high = 2**53 - 1, 2**62
    for after, last in ((low - 5, low), (high, high + 1)):
        headers = {**gateway.says(), "X_Hyp_Seq_Range": f"{after}-{last}"}
        assert gateway.send(f"{after}", gateway.rows(1, start=after % 7), **headers).status == 202
    assert gateway.watermark() == {"last": str(high + 1), "holes": [[0, low - 5], [low, str(high)]]}
