"""`adopt` and `resend`: what the user's word does to the streams of a sink that points elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.errors import HypError, Retryable
from hypaware.export import binding, locks
from hypaware.export.binding import Bound
from hypaware.export.locks import stream_lock
from hypaware.home import Home
from hypaware.state import streams, whose
from hypaware.state.streams import ELSEWHERE, HISTORY, OUTCOME
from tests.lives import live
from tests.standing_home import StandingHome, key


@pytest.fixture
def moved(home: Home, tmp_path: Path) -> StandingHome:
    """A sink that has delivered, planned more, buried a row, and was then pointed at another folder."""
    found = StandingHome(home)
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
        streams.hold(connection, key(), ELSEWHERE, "it points elsewhere")
        streams.bind(connection, key(), old, "the old one's name")
    return found


def adopt(standing: StandingHome, sink: str = "archive") -> dict[str, Bound]:
    with standing.store() as store:
        found = binding.adopt(standing.home, standing.config, store, sink)
    return {each.key.source: each for each in found}


def resend(standing: StandingHome, sink: str = "archive") -> dict[str, Bound]:
    with standing.store() as store:
        found = binding.resend(standing.home, standing.config, store, sink)
    return {each.key.source: each for each in found}


@pytest.mark.hazard(87)
def test_an_adopted_stream_goes_on_where_it_was_at_the_new_destination(moved: StandingHome) -> None:
    bound = adopt(moved)
    assert bound["claude"].previous_hold == ELSEWHERE
    assert (bound["claude"].previous_address, bound["claude"].address) == (moved.address("other"), moved.address())
    stream = moved.stream(key())
    assert (stream.address, stream.destination_id, stream.watermark) == (moved.address(), None, 10)
    assert (stream.held, stream.last_error) == (None, None)
    intent = moved.intent(key())
    assert intent is not None
    assert [chunk.id for chunk in intent.due] == ["chunk-30"], "what was under way keeps its ids"
    assert moved.letters() == ["letter-1", "letter-2"]
    assert moved.stream(key(source="codex")).watermark == 12


@pytest.mark.hazard(87)
def test_a_resent_stream_begins_anew_and_no_other_sink_is_touched(moved: StandingHome) -> None:
    bound = resend(moved)
    assert bound["claude"].letters_dropped == 1
    assert bound["claude"].watermark is None
    for source in ("claude", "codex"):
        stream = moved.stream(key(source=source))
        assert (stream.address, stream.watermark, stream.history) == (moved.address(), None, streams.NONE)
        assert (stream.held, stream.exported_rows) == (None, 0)
    assert moved.intent(key()) is None
    assert moved.letters() == ["letter-2"]
    assert moved.stream(key("other")).watermark == 7


@pytest.mark.hazard(87)
def test_a_sink_that_was_not_asked_for_stays_held(moved: StandingHome) -> None:
    adopt(moved, "other")
    stream = moved.stream(key())
    assert (stream.held, stream.address) == (ELSEWHERE, moved.address("other"))


def test_adopting_a_stream_whose_past_nobody_knows_takes_what_was_there_before_as_delivered(
    home: Home, tmp_path: Path
) -> None:
    standing = StandingHome(home)
    standing.declare(archive=tmp_path / "archive")
    standing.recorded(claude=40, codex=12, gemini=5)
    standing.delivered(key(source="gemini"), None)
    with standing.change() as connection:
        streams.lost_memory(connection)
        known = whose.load(connection)
        assert known is not None
        whose.save(connection, known.next_incarnation(through=30))
    for source in ("claude", "codex"):
        standing.delivered(key(source=source), None)
        with standing.change() as connection:
            streams.hold(connection, key(source=source), HISTORY, "nobody knows")
    adopt(standing)
    assert (standing.stream(key()).watermark, standing.stream(key()).held) == (30, None), "what came since was not sent"
    assert standing.stream(key(source="codex")).watermark == 12
    assert standing.stream(key(source="gemini")).watermark is None, "of this one nothing was sent: nothing is skipped"


def test_adopting_a_chunk_that_may_have_arrived_keeps_it_as_a_dead_letter_and_goes_on(moved: StandingHome) -> None:
    with moved.change() as connection:
        streams.hold(connection, key(), OUTCOME, "it is refused now")
    adopt(moved)
    intent = moved.intent(key())
    assert intent is not None
    assert intent.due == []
    assert "chunk-30" in moved.letters()


def test_the_side_file_knows_what_was_decided(moved: StandingHome) -> None:
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
def test_killed_at_any_step_it_is_done_or_not_done_and_can_be_done_again(moved: StandingHome, point: str) -> None:
    config = moved.config

    def decide() -> None:
        binding.resend(moved.home, config, store, "archive")

    with moved.store() as store:
        assert not live(decide, crash_at=point)
    state = {source: moved.stream(key(source=source)).watermark for source in ("claude", "codex")}
    assert state in ({"claude": 10, "codex": 12}, {"claude": None, "codex": None}), "all of it or nothing"
    resend(moved)
    assert moved.letters() == ["letter-2"]


@pytest.mark.hazard(26)
def test_nothing_is_changed_under_a_round_that_is_at_work(moved: StandingHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.0)
    with stream_lock(moved.home, key(source="codex")), pytest.raises(Retryable) as busy:
        resend(moved)
    assert busy.value.kind == "stream_busy"
    assert moved.stream(key()).watermark == 10


def test_a_sink_that_has_delivered_nothing_has_nothing_to_change(home: Home, tmp_path: Path) -> None:
    standing = StandingHome(home)
    standing.declare(archive=tmp_path / "archive")
    standing.recorded(claude=40)
    assert adopt(standing) == {}
    assert resend(standing) == {}


@pytest.mark.parametrize("decide", [adopt, resend])
def test_a_sink_that_there_is_not_is_named_with_the_nearest(moved: StandingHome, decide: object) -> None:
    assert callable(decide)
    with pytest.raises(HypError, match=r"unknown sink 'archiv'\. Did you mean archive\?") as unknown:
        decide(moved, "archiv")
    assert unknown.value.kind == "unknown_sink"
