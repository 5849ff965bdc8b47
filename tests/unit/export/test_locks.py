"""The lock of a stream: one holder at a time, whoever and wherever it is, and free again whatever becomes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from hypaware.errors import Retryable
from hypaware.export import locks
from hypaware.export.locks import path_of, stream_lock, stream_locks, try_lock
from hypaware.home import Home
from hypaware.state.stream_key import StreamKey
from tests import processes

KEY = StreamKey("team", "ai_gateway_messages", "claude")
HOLD = """
import sys
from hypaware.export import locks
from hypaware.export.locks import stream_lock
from hypaware.home import Home
from hypaware.state.stream_key import StreamKey

with stream_lock(Home.from_environment(), StreamKey(*sys.argv[1:])):
    print("held", flush=True)
    sys.stdin.read()
"""


def in_a_thread(work: Callable[[], object]) -> list[object]:
    """What the work returned or raised there."""
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
def test_a_second_round_in_the_same_process_finds_the_stream_taken(home: Home) -> None:
    with stream_lock(home, KEY):
        assert in_a_thread(lambda: try_lock(home, KEY)) == [None]
        assert try_lock(home, KEY) is None, "not even for the thread that has it"
    with stream_lock(home, KEY):
        pass


@pytest.mark.hazard(26)
def test_a_second_process_is_told_who_is_at_work(home: Home) -> None:
    with processes.running(HOLD, home, KEY.sink, KEY.dataset, KEY.source) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Retryable, match=f"team: ai_gateway_messages of claude .* process {other.pid}") as taken:
            stream_lock(home, KEY).__enter__()
        assert taken.value.kind == "stream_busy"
        with stream_lock(home, StreamKey("team", "ai_gateway_messages", "codex")):
            pass


def test_the_lock_of_a_killed_process_is_free(home: Home) -> None:
    with processes.running(HOLD, home, KEY.sink, KEY.dataset, KEY.source) as other:
        assert other.stdout
        other.stdout.readline()
        processes.kill(other)
        with stream_lock(home, KEY):
            assert path_of(home, KEY).read_bytes() == b"%d\n" % os.getpid()


def test_who_waits_gets_the_lock_when_it_is_given_back(home: Home) -> None:
    held = try_lock(home, KEY)
    assert held is not None
    waiting = threading.Event()
    got: list[bool] = []

    def wait() -> None:
        waiting.set()
        with stream_lock(home, KEY, wait=60):
            got.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    held.release()
    thread.join()
    assert got == [True]
    held.release()
    assert path_of(home, KEY).read_bytes() == b"", "nobody is named who has it no longer"


def test_a_lock_given_back_twice_frees_nobody_elses(home: Home) -> None:
    first = try_lock(home, KEY)
    assert first is not None
    first.release()
    second = try_lock(home, KEY)
    first.release()
    assert second is not None
    assert try_lock(home, KEY) is None
    second.release()


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
def test_names_that_look_alike_have_locks_of_their_own(home: Home, one: StreamKey, other: StreamKey) -> None:
    with stream_lock(home, one), stream_lock(home, other):
        assert path_of(home, one) != path_of(home, other)


def test_several_locks_are_taken_all_or_none(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.0)
    keys = [StreamKey("team", "ai_gateway_messages", source) for source in ("c", "a", "b")]
    with stream_lock(home, keys[2]):
        with pytest.raises(Retryable, match="of b is being delivered"), stream_locks(home, keys):
            pytest.fail("one of them was taken")
        with stream_locks(home, keys[:2]):
            pass
