"""`adopt` and `resend` on the streams of a sink that points elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.errors import HypError, Retryable
from hypaware.export import destination_change, stream_locks
from hypaware.export.destination_change import BindingChange
from hypaware.export.stream_locks import lock_stream
from hypaware.home import Home
from hypaware.state import streams
from hypaware.state.store import load_identity, save_identity
from hypaware.state.streams import HELD_ADDRESS_CHANGED, HELD_HISTORY_LOST, HELD_OUTCOME_UNKNOWN
from hypaware.testing.fault_injection import run_in_child
from tests.support.delivery_home import DeliveryHome, key


@pytest.fixture
def moved(home: Home, tmp_path: Path) -> DeliveryHome:
    """A sink with delivered rows, a pending intent and a dead letter, then pointed at another folder."""
    found = DeliveryHome(home)
    found.declare(archive=tmp_path / "old", other=tmp_path / "old")
    found.recorded(claude=40, codex=12)
    found.delivered(key(), 10)
    found.delivered(key(source="codex"), 12)
    found.delivered(key("other"), 7)
    found.planned(key(), 20, 30, acked=1)
    found.buried(key(), "letter-1", 5)
    found.buried(key("other"), "letter-2", 5)
    found.declare(archive=tmp_path / "new", other=tmp_path / "old")
    old = found.address("other")
    with found.change() as connection:
        streams.hold_stream(connection, key(), HELD_ADDRESS_CHANGED, "it points elsewhere")
        streams.bind_stream(connection, key(), old, "the old one's name")
    return found


def adopt(deliveries: DeliveryHome, sink: str = "archive") -> dict[str, BindingChange]:
    with deliveries.store() as store:
        found = destination_change.adopt(deliveries.home, deliveries.config, store, sink)
    return {each.key.source: each for each in found}


def resend(deliveries: DeliveryHome, sink: str = "archive") -> dict[str, BindingChange]:
    with deliveries.store() as store:
        found = destination_change.resend(deliveries.home, deliveries.config, store, sink)
    return {each.key.source: each for each in found}


@pytest.mark.hazard(87)
def test_an_adopted_stream_continues_at_the_new_destination(moved: DeliveryHome) -> None:
    bound = adopt(moved)
    assert bound["claude"].previous_hold == HELD_ADDRESS_CHANGED
    assert (bound["claude"].previous_address, bound["claude"].address) == (moved.address("other"), moved.address())
    stream = moved.stream(key())
    assert (stream.address, stream.destination_id, stream.watermark) == (moved.address(), None, 10)
    assert (stream.held, stream.last_error) == (None, None)
    intent = moved.intent(key())
    assert intent is not None
    assert [chunk.id for chunk in intent.due] == ["chunk-30"], "the chunks of a pending intent keep their ids"
    assert moved.letters() == ["letter-1", "letter-2"]
    assert moved.stream(key(source="codex")).watermark == 12


@pytest.mark.hazard(87)
def test_a_resent_stream_restarts_and_no_other_sink_changes(moved: DeliveryHome) -> None:
    bound = resend(moved)
    assert bound["claude"].letters_dropped == 1
    assert bound["claude"].watermark is None
    for source in ("claude", "codex"):
        stream = moved.stream(key(source=source))
        assert (stream.address, stream.watermark, stream.history) == (moved.address(), None, streams.NO_HISTORY)
        assert (stream.held, stream.exported_rows) == (None, 0)
    assert moved.intent(key()) is None
    assert moved.letters() == ["letter-2"]
    assert moved.stream(key("other")).watermark == 7


@pytest.mark.hazard(87)
def test_another_held_sink_stays_held(moved: DeliveryHome) -> None:
    adopt(moved, "other")
    stream = moved.stream(key())
    assert (stream.held, stream.address) == (HELD_ADDRESS_CHANGED, moved.address("other"))


def test_adopt_without_a_delivery_record_treats_existing_rows_as_delivered(home: Home, tmp_path: Path) -> None:
    deliveries = DeliveryHome(home)
    deliveries.declare(archive=tmp_path / "archive")
    deliveries.recorded(claude=40, codex=12, gemini=5)
    deliveries.delivered(key(source="gemini"), None)
    with deliveries.change() as connection:
        streams.mark_history_lost(connection)
        known = load_identity(connection)
        assert known is not None
        save_identity(connection, known.next_incarnation(through=30))
    for source in ("claude", "codex"):
        deliveries.delivered(key(source=source), None)
        with deliveries.change() as connection:
            streams.hold_stream(connection, key(source=source), HELD_HISTORY_LOST, "nobody knows")
    adopt(deliveries)
    assert (deliveries.stream(key()).watermark, deliveries.stream(key()).held) == (30, None), "newer rows were not sent"
    assert deliveries.stream(key(source="codex")).watermark == 12
    assert deliveries.stream(key(source="gemini")).watermark is None, "nothing of it was sent or skipped"


def test_adopt_keeps_an_uncertain_chunk_as_a_dead_letter_and_continues(moved: DeliveryHome) -> None:
    with moved.change() as connection:
        streams.hold_stream(connection, key(), HELD_OUTCOME_UNKNOWN, "it is refused now")
    adopt(moved)
    intent = moved.intent(key())
    assert intent is not None
    assert intent.due == []
    assert "chunk-30" in moved.letters()


def test_the_mirror_records_the_decision(moved: DeliveryHome) -> None:
    resend(moved)
    kept = json.loads(moved.home.mirror.read_bytes())["deliveries"]
    watermarks = {(each["sink"], each["source"]): each["watermark"] for each in kept["streams"]}
    assert watermarks == {("archive", "claude"): None, ("archive", "codex"): None, ("other", "claude"): 7}
    assert [letter["id"] for letter in kept["dead_letters"]] == ["letter-2"]
    adopt(moved)
    kept = json.loads(moved.home.mirror.read_bytes())["deliveries"]
    assert {each["address"] for each in kept["streams"] if each["sink"] == "archive"} == {moved.address()}


@pytest.mark.parametrize(
    "point", ["state.commit.before-commit", "state.commit.after-commit", "state.mirror.before-write"]
)
def test_a_killed_adopt_or_resend_is_complete_or_undone_and_can_be_repeated(moved: DeliveryHome, point: str) -> None:
    config = moved.config

    def decide() -> None:
        destination_change.resend(moved.home, config, store, "archive")

    with moved.store() as store:
        assert not run_in_child(decide, crash_at=point)
    state = {source: moved.stream(key(source=source)).watermark for source in ("claude", "codex")}
    assert state in ({"claude": 10, "codex": 12}, {"claude": None, "codex": None}), "all streams change, or none"
    resend(moved)
    assert moved.letters() == ["letter-2"]


@pytest.mark.hazard(26)
def test_nothing_changes_while_a_round_runs(moved: DeliveryHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_locks, "COMMAND_WAIT_SECONDS", 0.0)
    with lock_stream(moved.home, key(source="codex")), pytest.raises(Retryable) as busy:
        resend(moved)
    assert busy.value.kind == "stream_busy"
    assert moved.stream(key()).watermark == 10


def test_a_sink_without_deliveries_has_nothing_to_change(home: Home, tmp_path: Path) -> None:
    deliveries = DeliveryHome(home)
    deliveries.declare(archive=tmp_path / "archive")
    deliveries.recorded(claude=40)
    assert adopt(deliveries) == {}
    assert resend(deliveries) == {}


@pytest.mark.parametrize("decide", [adopt, resend])
def test_an_unknown_sink_is_reported_with_the_nearest_name(moved: DeliveryHome, decide: object) -> None:
    assert callable(decide)
    with pytest.raises(HypError, match=r"unknown sink 'archiv'\. Did you mean archive\?") as unknown:
        decide(moved, "archiv")
    assert unknown.value.kind == "unknown_sink"
