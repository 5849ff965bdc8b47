"""The recorded copy is bounded, never delays the stream, and is complete or marked incomplete."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypaware.errors import Retryable
from hypaware.gateway.exchange import RecordedBody, RecordedExchange
from hypaware.gateway.recorder import ExchangeCapture, ExchangeHandler, Recorder, RecorderCounts, RecorderLimits
from hypaware.gateway.routes import Route
from tests.support.live_gateway import KeptExchanges
from tests.support.processes import PATIENCE, eventually

ROUTE = Route("anthropic", "/", "https://api.anthropic.com", "anthropic", client="claude")
SMALL = RecorderLimits(in_memory=100, body_size=10_000, total_in_memory=4_000, queued_exchanges=3)


@contextmanager
def open_recorder(handle: ExchangeHandler, folder: Path, limits: RecorderLimits = SMALL) -> Iterator[Recorder]:
    recorder = Recorder(handle, folder, limits=limits)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def record_exchange(recorder: Recorder, request: bytes = b"{}", *answer: bytes, error: str | None = None) -> None:
    capture = ExchangeCapture(recorder, ROUTE, "POST", "/v1/messages", [("a", "b")])
    capture.request.add(request)
    capture.status, capture.response_headers = 200, [("c", "d")]
    for chunk in answer:
        capture.response.add(chunk)
    capture.finish(error)


class BlockedHandler:
    """An exchange handler that waits for the test."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.kept: list[RecordedExchange] = []

    def __call__(self, found: RecordedExchange) -> None:
        self.begun.release()
        assert self.go_on.wait(PATIENCE)
        self.kept.append(found)


def test_an_exchange_is_recorded_as_it_passed(tmp_path: Path) -> None:
    kept = KeptExchanges()
    with open_recorder(kept, tmp_path) as recorder:
        record_exchange(recorder, b"question", b"ans", b"wer")

    found, request, response = kept.only()
    assert (request, response) == (b"question", b"answer")
    assert (found.request, found.response) == (RecordedBody(b"question", 8), RecordedBody(b"answer", 6))
    assert (found.upstream, found.provider, found.client_name) == ("anthropic", "anthropic", "claude")
    assert (found.method, found.path, found.status, found.error) == ("POST", "/v1/messages", 200, None)
    assert found.first_byte_ms is not None
    assert found.started_at <= found.ended_at
    assert recorder.counts == RecorderCounts(kept=1)


@pytest.mark.hazard(57)
def test_a_large_body_is_in_a_private_file_until_it_is_stored(tmp_path: Path) -> None:
    modes: list[tuple[int, int]] = []
    bodies: list[bytes] = []

    def handle(found: RecordedExchange) -> None:
        assert isinstance(found.response.content, Path)
        assert found.request.content == b"{}"
        path = found.response.content
        modes.append((stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)))
        bodies.append(b"".join(found.response.blocks()))

    with open_recorder(handle, tmp_path / "spill") as recorder:
        record_exchange(recorder, b"{}", *(b"%03d" % number for number in range(300)))

    assert modes == [(0o600, 0o700)]
    assert bodies == [b"".join(b"%03d" % number for number in range(300))]
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.hazard(57)
def test_a_body_over_the_limit_is_kept_up_to_it_and_marked_incomplete(tmp_path: Path) -> None:
    kept = KeptExchanges()
    with open_recorder(kept, tmp_path, RecorderLimits(in_memory=100, body_size=1_000)) as recorder:
        record_exchange(recorder, b"{}", *[b"x" * 300] * 5)

    found, _, response = kept.only()
    assert response == b"x" * 900
    assert (found.response.size, found.response.complete, found.error) == (1_500, False, "body_too_large")
    assert recorder.counts == RecorderCounts(kept=1, incomplete=1)


@pytest.mark.hazard(57)
def test_memory_is_bounded_across_exchanges_and_released(tmp_path: Path) -> None:
    """Each body fits the memory limit alone, but not all together; they are spilled to disk and nothing is lost."""
    kept = KeptExchanges()
    limits = RecorderLimits(in_memory=1 << 20, total_in_memory=200_000)
    with open_recorder(kept, tmp_path, limits) as recorder:
        for _ in range(3):
            captures = [ExchangeCapture(recorder, ROUTE, "POST", "/", []) for _ in range(10)]
            for _ in range(20):
                for capture in captures:
                    capture.response.add(b"y" * 1000)
                eventually(lambda: recorder.spill.reserve(30_000))
                recorder.spill.release(30_000)
            for capture in captures:
                capture.finish()
        found = kept.wait(30)

    assert {len(response) for _, _, response in found} == {20_000}
    assert all(each.response.complete for each, _, _ in found)
    assert any(isinstance(each.response.content, Path) for each, _, _ in found)
    assert recorder.spill.reserve(limits.total_in_memory), "all memory was released"


@pytest.mark.hazard(57)
def test_a_slow_disk_costs_the_recording_and_not_the_stream(tmp_path: Path) -> None:
    kept = KeptExchanges()
    stuck = threading.Event()
    with open_recorder(kept, tmp_path) as recorder:
        recorder.spill.queue.put(lambda: eventually(stuck.is_set))
        capture = ExchangeCapture(recorder, ROUTE, "POST", "/", [])
        for _ in range(100):
            capture.response.add(b"z" * 90)
        stuck.set()
        capture.finish()

    found, _, response = kept.only()
    assert found.error == "recorder_behind"
    assert (found.response.size, found.response.complete) == (9_000, False)
    assert response == b"z" * len(response)
    assert 0 < len(response) <= SMALL.total_in_memory


@pytest.mark.hazard(57)
def test_a_slow_disk_delays_an_exchange_until_both_bodies_are_written(tmp_path: Path) -> None:
    kept = KeptExchanges()
    stuck = threading.Event()
    with open_recorder(kept, tmp_path, RecorderLimits(in_memory=100, body_size=1_000)) as recorder:
        recorder.spill.queue.put(lambda: eventually(stuck.is_set))
        capture = ExchangeCapture(recorder, ROUTE, "POST", "/", [])
        capture.request.add(b"q" * 300)
        capture.response.add(b"r" * 1_001)
        capture.finish()
        eventually(recorder.queue.empty)
        stuck.set()

    found, request, response = kept.only()
    assert (request, response, found.error) == (b"q" * 300, b"", "body_too_large")
    assert recorder.counts == RecorderCounts(kept=1, incomplete=1)


def test_a_failed_spill_is_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    kept = KeptExchanges()
    folder = tmp_path / "spill"
    with open_recorder(kept, folder) as recorder:
        folder.rmdir()
        record_exchange(recorder, b"question", b"a" * 300)
        record_exchange(recorder, b"again", b"short")

    (first, request, response), (second, _, short) = kept.wait(2)
    assert (first.error, first.response.complete, request, response) == ("spill_failed", False, b"question", b"")
    assert (second.error, short) == (None, b"short")


@pytest.mark.hazard(57)
def test_exchanges_over_the_queue_limit_are_dropped_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = BlockedHandler()
    with caplog.at_level(logging.WARNING, "hypaware.gateway"), open_recorder(handle, tmp_path) as recorder:
        record_exchange(recorder)
        assert handle.begun.acquire(timeout=PATIENCE)
        for number in range(6):
            record_exchange(recorder, b"%d" % number)
        eventually(lambda: recorder.counts.dropped == 3)
        handle.go_on.set()

    assert [b"".join(found.request.blocks()) for found in handle.kept] == [b"{}", b"0", b"1", b"2"]
    assert recorder.counts == RecorderCounts(kept=4, dropped=3)
    assert "3 exchanges dropped" not in caplog.text
    assert "2 exchanges dropped" in caplog.text


def test_a_dropped_exchange_leaves_no_file(tmp_path: Path) -> None:
    handle = BlockedHandler()
    with open_recorder(handle, tmp_path) as recorder:
        record_exchange(recorder)
        assert handle.begun.acquire(timeout=PATIENCE)
        for _ in range(6):
            record_exchange(recorder, b"{}", b"a" * 300)
        eventually(lambda: recorder.counts.dropped == 3)
        assert len(list(tmp_path.iterdir())) == 3
        handle.go_on.set()

    assert list(tmp_path.iterdir()) == []


def test_a_temporary_error_is_retried(tmp_path: Path) -> None:
    tries = iter((True, True, False))
    kept = KeptExchanges()

    def handle(found: RecordedExchange) -> None:
        if next(tries, False):
            raise Retryable("the disk is full")
        kept(found)

    with open_recorder(handle, tmp_path) as recorder:
        record_exchange(recorder, b"first")
        record_exchange(recorder, b"second")
        found = kept.wait(2)

    assert [request for _, request, _ in found] == [b"first", b"second"]
    assert recorder.counts == RecorderCounts(kept=2)


def test_a_lasting_error_does_not_delay_stopping(tmp_path: Path) -> None:
    def handle(_found: RecordedExchange) -> None:
        raise Retryable("the disk is full")

    with open_recorder(handle, tmp_path) as recorder:
        record_exchange(recorder)
        record_exchange(recorder, b"{}", b"a" * 300)

    assert recorder.counts == RecorderCounts(failed=2)
    assert list(tmp_path.iterdir()) == []


def test_exchanges_that_wait_for_each_other_are_stored_together(tmp_path: Path) -> None:
    handle, steps = BlockedHandler(), list[int]()
    recorder = Recorder(handle, tmp_path, store=lambda: steps.append(len(handle.kept)), limits=SMALL)
    recorder.start()
    record_exchange(recorder)
    assert handle.begun.acquire(timeout=PATIENCE)
    for _ in range(3):
        record_exchange(recorder)
    eventually(lambda: recorder.queue.qsize() == 3)
    handle.go_on.set()
    eventually(lambda: steps == [4])
    recorder.stop()

    assert recorder.counts == RecorderCounts(kept=4)


def test_a_full_disk_delays_storing_until_there_is_room(tmp_path: Path) -> None:
    kept, tries = KeptExchanges(), iter((True, True, False))
    stored = threading.Event()

    def store() -> None:
        if next(tries, False):
            raise Retryable("the disk is full")
        stored.set()

    recorder = Recorder(kept, tmp_path, store=store, limits=SMALL)
    recorder.start()
    record_exchange(recorder)
    assert stored.wait(PATIENCE)
    recorder.stop()

    assert len(kept.wait(1)) == 1


def test_an_attempt_that_began_before_stopping_is_not_the_last(tmp_path: Path) -> None:
    """The disk has room again just when the daemon stops; the waiting exchanges must not be given up."""
    begun, stored = threading.Event(), list[bool]()

    def store() -> None:
        stored.append(begun.is_set())
        if not begun.is_set():
            begun.set()
            eventually(recorder._stopping.is_set)
            raise Retryable("the disk is full")

    recorder = Recorder(KeptExchanges(), tmp_path, store=store, limits=SMALL)
    recorder.start()
    record_exchange(recorder)
    assert begun.wait(PATIENCE)
    recorder.stop()

    assert stored[:2] == [False, True]


def test_an_exchange_that_cannot_be_stored_is_counted_and_not_quoted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptExchanges()

    def handle(found: RecordedExchange) -> None:
        if found.request.content == b"secret":
            raise ValueError(f"cannot read {found.request.content!r}")
        kept(found)

    with open_recorder(handle, tmp_path) as recorder:
        record_exchange(recorder, b"secret")
        record_exchange(recorder, b"plain")

    assert [request for _, request, _ in kept.wait(1)] == [b"plain"]
    assert recorder.counts == RecorderCounts(kept=1, failed=1)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_stopping_returns_when_all_finished_exchanges_are_stored_in_order(tmp_path: Path) -> None:
    kept = KeptExchanges()
    with open_recorder(kept, tmp_path, RecorderLimits(in_memory=100)) as recorder:
        for number in range(200):
            record_exchange(recorder, b"%d" % number, b"a" * (300 if number % 2 else 3))

    assert [request for _, request, _ in kept.wait(200)] == [b"%d" % number for number in range(200)]


def test_only_spill_files_of_an_earlier_process_are_removed(tmp_path: Path) -> None:
    kept = KeptExchanges()
    (tmp_path / "0123.spill").write_bytes(b"left")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    outside = tmp_path.with_name("outside.spill")
    outside.write_bytes(b"mine too")
    (tmp_path / "link.spill").symlink_to(outside)

    with open_recorder(kept, tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]

    assert outside.read_bytes() == b"mine too"


def test_a_removed_home_is_not_created_again(tmp_path: Path) -> None:
    """The spill directory is two levels below the home, which may be removed while a gateway starts."""
    with pytest.raises(FileNotFoundError):
        Recorder(KeptExchanges(), tmp_path / "run" / "spill" / "0", limits=SMALL).start()
    assert list(tmp_path.iterdir()) == []


def test_an_exchange_finishes_once(tmp_path: Path) -> None:
    kept = KeptExchanges()
    with open_recorder(kept, tmp_path) as recorder:
        capture = ExchangeCapture(recorder, ROUTE, "POST", "/", [])
        capture.finish("client_abort")
        capture.finish("gateway_failed")

    assert [found.error for found, _, _ in kept.wait(1)] == ["client_abort"]


def test_bytes_after_the_end_are_ignored(tmp_path: Path) -> None:
    """A provider may respond while the request is still being sent."""
    kept = KeptExchanges()
    with open_recorder(kept, tmp_path) as recorder:
        capture = ExchangeCapture(recorder, ROUTE, "POST", "/", [])
        capture.request.add(b"early")
        capture.finish()
        capture.request.add(b"late" * 100)

    found, request, _ = kept.only()
    assert (request, found.request.size, found.request.complete) == (b"early", 5, True)
    assert recorder.spill.reserve(SMALL.total_in_memory)


def test_a_client_that_is_not_recorded_leaves_no_trace(tmp_path: Path) -> None:
    kept: list[RecordedExchange] = []
    with open_recorder(kept.append, tmp_path) as recorder:
        capture = ExchangeCapture(
            recorder, Route("a", "/", "https://x", "x", client="claude", recorded=False), "POST", "/", []
        )
        capture.request.add(b"a" * 500)
        capture.response.add(b"b" * 500)
        assert list(tmp_path.iterdir()) == []
        capture.finish()

    assert kept == []
    assert recorder.counts == RecorderCounts()
