"""The lock of a stream: one holder at a time across threads and processes, released even by a kill."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from hypaware.errors import Retryable
from hypaware.export.stream_locks import lock_path, lock_stream, lock_streams, try_lock_stream
from hypaware.home import Home
from hypaware.state.streams import StreamKey
from tests.support import processes

KEY = StreamKey("team", "ai_gateway_messages", "claude")
HOLD = """
import sys
from hypaware.export import stream_locks
from hypaware.export.stream_locks import lock_stream
from hypaware.home import Home
from hypaware.state.streams import StreamKey




with lock_stream(Home.from_environment(), StreamKey(*sys.argv[1:])):
    print("held", flush=True)
    sys.stdin.read()
"""


def in_a_thread(work: Callable[[], object]) -> list[object]:
    """Return the result of the work in another process, or raise its error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome


@pytest.mark.hazard(26)
def test_a_second_round_in_the_same_process_finds_the_stream_locked(home: Home) -> None:
    with lock_stream(home, KEY):
        assert in_a_thread(lambda: try_lock_stream(home, KEY)) == [None]
        assert try_lock_stream(home, KEY) is None, "not even for the thread that holds it"
    with lock_stream(home, KEY):
        pass


@pytest.mark.hazard(26)
def test_the_error_of_a_second_process_names_the_holder_of_the_lock(home: Home) -> None:
    with processes.running(HOLD, home, KEY.sink, KEY.dataset, KEY.source) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Retryable, match=f"team: ai_gateway_messages of claude .* process {other.pid}") as taken:
            lock_stream(home, KEY).__enter__()
        assert taken.value.kind == "stream_busy"
        with lock_stream(home, StreamKey("team", "ai_gateway_messages", "codex")):
            pass


def test_a_killed_process_releases_its_lock(home: Home) -> None:
    with processes.running(HOLD, home, KEY.sink, KEY.dataset, KEY.source) as other:
        assert other.stdout
        other.stdout.readline()
        processes.kill(other)
        with lock_stream(home, KEY):
            assert lock_path(home, KEY).read_bytes() == b"%d\n" % os.getpid()


def test_a_waiting_process_gets_the_lock_when_it_is_released(home: Home) -> None:
    held = try_lock_stream(home, KEY)
    assert held is not None
    waiting = threading.Event()
    got: list[bool] = []

    def wait() -> None:
        waiting.set()
        with lock_stream(home, KEY, wait=60):
            got.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    held.close()
    thread.join()
    assert got == [True]
    held.close()
    assert lock_path(home, KEY).read_bytes() == b"", "a former holder is not named"


def test_releasing_a_lock_twice_does_not_release_another_lock(home: Home) -> None:
    first = try_lock_stream(home, KEY)
    assert first is not None
    first.close()
    second = try_lock_stream(home, KEY)
    first.close()
    assert second is not None
    assert try_lock_stream(home, KEY) is None
    second.close()


@pytest.mark.hazard(25)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (StreamKey("t", "d", "a b"), StreamKey("t", "d", "a_b")),
        (StreamKey("t", "d", "a/b"), StreamKey("t", "d", "a\\b")),
        (StreamKey("t", "da", "b"), StreamKey("t", "d", "ab")),
        (StreamKey("t", "d", "é"), StreamKey("t", "d", "e\u0301")),
    ],
)
def test_similar_names_have_separate_locks(home: Home, one: StreamKey, other: StreamKey) -> None:
    with lock_stream(home, one), lock_stream(home, other):
        assert lock_path(home, one) != lock_path(home, other)


def test_either_all_locks_are_taken_or_none(home: Home) -> None:
    keys = [StreamKey("team", "ai_gateway_messages", source) for source in ("c", "a", "b")]
    with lock_stream(home, keys[2]):
        with pytest.raises(Retryable, match="of b is being delivered"), lock_streams(home, keys, 0.0):
            pytest.fail("one of them was taken")
        with lock_streams(home, keys[:2]):
            pass
