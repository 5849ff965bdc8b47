"""The copy beside the stream: bounded, never in the way, and whole or said not to be."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypaware.capture.recorder import Counts, Keep, Recorder
from hypaware.capture.recording import Body, Recording
from hypaware.capture.routes import Route
from hypaware.capture.spill import Limits
from hypaware.errors import Retryable
from tests.live_gateway import Kept
from tests.processes import PATIENCE, eventually

ROUTE = Route("anthropic", "/", "https://api.anthropic.com", "anthropic", client="claude")
SMALL = Limits(in_memory=100, body=10_000, room=4_000, waiting=3)


@contextmanager
def recording(keep: Keep, folder: Path, limits: Limits = SMALL) -> Iterator[Recorder]:
    recorder = Recorder(keep, folder, limits=limits)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def exchange(recorder: Recorder, request: bytes = b"{}", *answer: bytes, error: str | None = None) -> None:
    take = recorder.begin(ROUTE, "POST", "/v1/messages", [("a", "b")])
    take.request.add(request)
    take.answered(200, [("c", "d")])
    for piece in answer:
        take.came(piece)
    take.end(error)


class Held:
    """A keep that waits for the test."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.kept: list[Recording] = []

    def __call__(self, found: Recording) -> None:
        self.begun.release()
        assert self.go_on.wait(PATIENCE)
        self.kept.append(found)


def test_an_exchange_is_kept_as_it_passed(tmp_path: Path) -> None:
    kept = Kept()
    with recording(kept, tmp_path) as recorder:
        exchange(recorder, b"question", b"ans", b"wer")

    found, request, response = kept.only()
    assert (request, response) == (b"question", b"answer")
    assert (found.request, found.response) == (Body(b"question", 8), Body(b"answer", 6))
    assert (found.upstream, found.provider, found.client_name) == ("anthropic", "anthropic", "claude")
    assert (found.method, found.path, found.status, found.error) == ("POST", "/v1/messages", 200, None)
    assert found.first_byte_ms is not None
    assert found.started_at <= found.ended_at
    assert recorder.counts == Counts(kept=1)


@pytest.mark.hazard(57)
def test_a_large_body_lies_in_a_private_file_until_it_is_kept(tmp_path: Path) -> None:
    modes: list[tuple[int, int]] = []
    bodies: list[bytes] = []

    def keep(found: Recording) -> None:
        assert isinstance(found.response.held, Path)
        assert found.request.held == b"{}"
        path = found.response.held
        modes.append((stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)))
        bodies.append(b"".join(found.response.blocks()))

    with recording(keep, tmp_path / "spill") as recorder:
        exchange(recorder, b"{}", *(b"%03d" % number for number in range(300)))

    assert modes == [(0o600, 0o700)]
    assert bodies == [b"".join(b"%03d" % number for number in range(300))]
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.hazard(57)
def test_a_body_beyond_the_limit_is_kept_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    kept = Kept()
    with recording(kept, tmp_path, Limits(in_memory=100, body=1_000)) as recorder:
        exchange(recorder, b"{}", *[b"x" * 300] * 5)

    found, _, response = kept.only()
    assert response == b"x" * 900
    assert (found.response.size, found.response.complete, found.error) == (1_500, False, "body_too_large")
    assert recorder.counts == Counts(kept=1, incomplete=1)


@pytest.mark.hazard(57)
def test_memory_is_bounded_over_all_exchanges_and_comes_back(tmp_path: Path) -> None:
    """Each is small enough for itself; together they would not be. Nothing is lost: they go to disk before."""
    kept = Kept()
    limits = Limits(in_memory=1 << 20, room=200_000)
    with recording(kept, tmp_path, limits) as recorder:
        for _ in range(3):
            takes = [recorder.begin(ROUTE, "POST", "/", []) for _ in range(10)]
            for _ in range(20):
                for take in takes:
                    take.came(b"y" * 1000)
                eventually(lambda: recorder.spill.room.take(30_000))
                recorder.spill.room.give(30_000)
            for take in takes:
                take.end()
        found = kept.wait(30)

    assert {len(response) for _, _, response in found} == {20_000}
    assert all(each.response.complete for each, _, _ in found)
    assert any(isinstance(each.response.held, Path) for each, _, _ in found)
    assert recorder.spill.room.take(limits.room), "all of the room was given back"


@pytest.mark.hazard(57)
def test_a_disk_that_cannot_follow_costs_the_copy_and_not_the_stream(tmp_path: Path) -> None:
    kept = Kept()
    stuck = threading.Event()
    with recording(kept, tmp_path) as recorder:
        recorder.spill.then(lambda: eventually(stuck.is_set))
        take = recorder.begin(ROUTE, "POST", "/", [])
        for _ in range(100):
            take.came(b"z" * 90)
        stuck.set()
        take.end()

    found, _, response = kept.only()
    assert found.error == "recorder_behind"
    assert (found.response.size, found.response.complete) == (9_000, False)
    assert response == b"z" * len(response)
    assert 0 < len(response) <= SMALL.room


def test_a_spill_that_fails_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    kept = Kept()
    folder = tmp_path / "spill"
    with recording(kept, folder) as recorder:
        folder.rmdir()
        exchange(recorder, b"question", b"a" * 300)
        exchange(recorder, b"again", b"short")

    (first, request, response), (second, _, short) = kept.wait(2)
    assert (first.error, first.response.complete, request, response) == ("spill_failed", False, b"question", b"")
    assert (second.error, short) == (None, b"short")


@pytest.mark.hazard(57)
def test_too_many_that_wait_are_dropped_counted_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep = Held()
    with caplog.at_level(logging.WARNING, "hypaware.gateway"), recording(keep, tmp_path) as recorder:
        exchange(recorder)
        assert keep.begun.acquire(timeout=PATIENCE)
        for number in range(6):
            exchange(recorder, b"%d" % number)
        eventually(lambda: recorder.counts.dropped == 3)
        keep.go_on.set()

    assert [b"".join(found.request.blocks()) for found in keep.kept] == [b"{}", b"0", b"1", b"2"]
    assert recorder.counts == Counts(kept=4, dropped=3)
    assert "3 exchanges were dropped" not in caplog.text
    assert "2 exchanges were dropped" in caplog.text


def test_a_dropped_one_leaves_no_file(tmp_path: Path) -> None:
    keep = Held()
    with recording(keep, tmp_path) as recorder:
        exchange(recorder)
        assert keep.begun.acquire(timeout=PATIENCE)
        for _ in range(6):
            exchange(recorder, b"{}", b"a" * 300)
        eventually(lambda: recorder.counts.dropped == 3)
        assert len(list(tmp_path.iterdir())) == 3
        keep.go_on.set()

    assert list(tmp_path.iterdir()) == []


def test_trouble_that_passes_is_waited_out(tmp_path: Path) -> None:
    tries = iter((True, True, False))
    kept = Kept()

    def keep(found: Recording) -> None:
        if next(tries, False):
            raise Retryable("the disk is full")
        kept(found)

    with recording(keep, tmp_path) as recorder:
        exchange(recorder, b"first")
        exchange(recorder, b"second")
        found = kept.wait(2)

    assert [request for _, request, _ in found] == [b"first", b"second"]
    assert recorder.counts == Counts(kept=2)


def test_trouble_that_does_not_pass_does_not_hold_up_the_end(tmp_path: Path) -> None:
    def keep(_found: Recording) -> None:
        raise Retryable("the disk is full")

    with recording(keep, tmp_path) as recorder:
        exchange(recorder)
        exchange(recorder, b"{}", b"a" * 300)

    assert recorder.counts == Counts(failed=2)
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_kept_is_counted_and_its_words_stay_out_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept()

    def keep(found: Recording) -> None:
        if found.request.held == b"secret":
            raise ValueError(f"cannot read {found.request.held!r}")
        kept(found)

    with recording(keep, tmp_path) as recorder:
        exchange(recorder, b"secret")
        exchange(recorder, b"plain")

    assert [request for _, request, _ in kept.wait(1)] == [b"plain"]
    assert recorder.counts == Counts(kept=1, failed=1)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_stopping_returns_when_everything_that_ended_is_kept_in_its_order(tmp_path: Path) -> None:
    kept = Kept()
    with recording(kept, tmp_path, Limits(in_memory=100)) as recorder:
        for number in range(200):
            exchange(recorder, b"%d" % number, b"a" * (300 if number % 2 else 3))

    assert [request for _, request, _ in kept.wait(200)] == [b"%d" % number for number in range(200)]


def test_what_an_earlier_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = Kept()
    (tmp_path / "0123.spill").write_bytes(b"left")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    outside = tmp_path.with_name("outside.spill")
    outside.write_bytes(b"mine too")
    (tmp_path / "link.spill").symlink_to(outside)

    with recording(kept, tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]

    assert outside.read_bytes() == b"mine too"


def test_a_home_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """The folder lies two levels below what belongs to the home; that one may be removed while a gateway begins."""
    with pytest.raises(FileNotFoundError):
        Recorder(Kept(), tmp_path / "run" / "spill" / "0", limits=SMALL).start()
    assert list(tmp_path.iterdir()) == []


def test_an_exchange_ends_once(tmp_path: Path) -> None:
    kept = Kept()
    with recording(kept, tmp_path) as recorder:
        take = recorder.begin(ROUTE, "POST", "/", [])
        take.end("client_abort")
        take.end("gateway_failed")

    assert [found.error for found, _, _ in kept.wait(1)] == ["client_abort"]


def test_what_comes_after_the_end_is_not_heard(tmp_path: Path) -> None:
    """A provider may answer while the request is still being sent."""
    kept = Kept()
    with recording(kept, tmp_path) as recorder:
        take = recorder.begin(ROUTE, "POST", "/", [])
        take.request.add(b"early")
        take.end()
        take.request.add(b"late" * 100)

    found, request, _ = kept.only()
    assert (request, found.request.size, found.request.complete) == (b"early", 5, True)
    assert recorder.spill.room.take(SMALL.room)


def test_a_client_that_is_not_recorded_leaves_nothing(tmp_path: Path) -> None:
    kept: list[Recording] = []
    with recording(kept.append, tmp_path) as recorder:
        take = recorder.begin(Route("a", "/", "https://x", "x", client="claude", recorded=False), "POST", "/", [])
        take.request.add(b"a" * 500)
        take.came(b"b" * 500)
        assert list(tmp_path.iterdir()) == []
        take.end()

    assert kept == []
    assert recorder.counts == Counts()
