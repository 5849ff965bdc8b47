"""Frames over a real socket pair."""

from __future__ import annotations

import inspect
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware import errors
from hypaware.engine import protocol
from hypaware.engine.protocol import JobConnection, ProtocolError

Pair = tuple[JobConnection, JobConnection]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with JobConnection(ours) as here, JobConnection(theirs) as there:
        yield here, there


def test_messages_and_bytes_arrive_unchanged_and_in_order(pair: Pair) -> None:
    here, there = pair
    here.send({"type": "note", "message": "é ☃ \x00"})
    here.send_bytes(b"J\x00\x00\x00\x02{}")
    here.send({"type": "result", "result": {"rows": [1, None, 2.5]}})
    assert there.receive() == {"type": "note", "message": "é ☃ \x00"}
    assert there.receive() == b"J\x00\x00\x00\x02{}"
    assert there.receive() == {"type": "result", "result": {"rows": [1, None, 2.5]}}


@given(sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=8), cut=st.integers(1, 40))
def test_frames_are_reassembled_from_any_split_of_the_stream(sizes: list[int], cut: int) -> None:
    ours, theirs = socket.socketpair()
    with JobConnection(ours) as here, ours, theirs:
        stream = b"".join(struct.pack(">cI", b"B", size) + bytes([size % 256]) * size for size in sizes)

        def trickle() -> None:
            for start in range(0, len(stream), cut):
                theirs.sendall(stream[start : start + cut])

        sender = threading.Thread(target=trickle)
        sender.start()
        received = [here.receive() for _ in sizes]
        sender.join()
    assert received == [bytes([size % 256]) * size for size in sizes]


def test_bytes_of_any_length_are_split_into_frames(pair: Pair) -> None:
    here, there = pair
    data = bytes(range(256)) * 20_000
    sender = threading.Thread(target=here.send_bytes, args=(data,))
    sender.start()
    received = b""
    while len(received) < len(data):
        piece = there.receive()
        assert isinstance(piece, bytes)
        assert len(piece) < protocol.MAX_FRAME
        received += piece
    sender.join()
    assert received == data


def test_frames_of_several_threads_are_not_interleaved(pair: Pair) -> None:
    here, there = pair

    def send(letter: bytes) -> None:
        for _ in range(20):
            here.send_bytes(letter * 100_000)

    senders = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for sender in senders:
        sender.start()
    pieces = [there.receive() for _ in range(60)]
    for sender in senders:
        sender.join()
    assert sorted(pieces, key=str) == sorted([b"a" * 100_000, b"b" * 100_000, b"c" * 100_000] * 20, key=str)


def test_a_disconnect_is_none_even_within_a_frame(pair: Pair) -> None:
    here, there = pair
    here.socket.sendall(struct.pack(">cI", b"J", 100) + b"{")
    here.close()
    assert there.receive() is None


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">cI", b"J", protocol.MAX_FRAME + 1),
        struct.pack(">cI", b"J", 3) + b"{x}",
        struct.pack(">cI", b"J", 2) + b"[]",
        struct.pack(">cI", b"J", 2) + b"{}",
        struct.pack(">cI", b"J", 1) + b"\xff",
    ],
)
def test_invalid_data_is_rejected(pair: Pair, stream: bytes) -> None:
    here, there = pair
    here.socket.sendall(stream)
    with pytest.raises(ProtocolError):
        there.receive()


def test_a_message_too_large_for_a_frame_is_rejected_before_it_is_sent(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(ProtocolError, match="result"):
        here.send({"type": "result", "result": {"text": "x" * protocol.MAX_FRAME}})
    here.send({"type": "note", "message": "still in step"})
    assert there.receive() == {"type": "note", "message": "still in step"}


def test_an_interrupted_receive_keeps_the_received_data(pair: Pair) -> None:
    """After Ctrl-C within a frame, the job must still be cancelled over the same connection."""
    here, there = pair
    frame = struct.pack(">cI", b"B", 4) + b"four"
    here.socket.sendall(frame[:6])

    def interrupt_when_read() -> None:
        if len(there._received) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        there.receive(interrupt_when_read)
    here.socket.sendall(frame[6:])
    assert there.receive() == b"four"


def _every_error() -> list[type[errors.HypError]]:
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.HypError)]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("kind", _every_error())
def test_every_error_is_decoded_to_the_same_class_and_fields(kind: type[errors.HypError]) -> None:
    raised = kind("what happened")
    got = protocol.decode_error(protocol.encode_error(raised))
    assert type(got) is kind
    assert (got.as_json(), got.exit_code) == (raised.as_json(), raised.exit_code)


def test_an_error_class_of_another_module_is_decoded_to_its_base_class() -> None:
    class Special(errors.NotReady):
        kind = "special"
        exit_code = 7

    got = protocol.decode_error(protocol.encode_error(Special("gone", repair=["hyp a", "hyp b"])))
    assert type(got) is errors.NotReady
    assert (got.kind, got.exit_code, got.message, got.repair) == ("special", 7, "gone", ("hyp a", "hyp b"))


@pytest.mark.parametrize("name", ["Sequence", "annotations", "__name__", "NoSuchThing", None])
def test_an_error_with_an_unknown_class_is_decoded(name: str | None) -> None:
    got = protocol.decode_error({"type": "error", "class": name, "kind": "odd", "message": "m", "exit_code": 1})
    assert type(got) is errors.HypError
