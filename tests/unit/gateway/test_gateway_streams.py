"""Streams are forwarded as they arrive, at the speed of the slower side, whatever their length."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.gateway.exchange import RecordedExchange
from hypaware.gateway.recorder import RecorderLimits
from tests.support.live_gateway import ClientConnection, KeptExchanges, LiveGateway, post
from tests.support.processes import PATIENCE, eventually
from tests.support.upstream_stub import ReceivedRequest, StubResponse, UpstreamStub

MIB = 1 << 20
LARGE = 100 * MIB


def max_in_flight() -> int:
    """The bytes that the sockets of two connections and the gateway's own buffers can hold on this system."""
    limits = [Path("/proc/sys/net/ipv4") / name for name in ("tcp_rmem", "tcp_wmem")]
    grown = [int(limit.read_text().split()[2]) if limit.exists() else 8 * MIB for limit in limits]
    return (2 * sum(grown) // MIB + 16) * MIB


def random_blocks(size: int) -> Iterator[bytes]:
    """Pseudo-random bytes, the same ones each time."""
    seed = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256)) * 32
    for number in range(size // len(seed)):
        yield number.to_bytes(8, "big") + seed[8:]


class Digests:
    """Stores the hashes of the bodies, read block by block."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, bool]] = []

    def __call__(self, recording: RecordedExchange) -> None:
        hashed = []
        for body in (recording.request, recording.response):
            digest = hashlib.sha256()
            for block in body.blocks():
                digest.update(block)
            hashed.append(digest.hexdigest())
        self.found.append((hashed[0], hashed[1], recording.request.complete and recording.response.complete))


@pytest.mark.hazard(65)
def test_each_chunk_arrives_before_the_next_one_is_sent(tmp_path: Path) -> None:
    """The provider sends a chunk only after the client has received the previous one, so buffering would deadlock."""
    steps = [threading.Event() for _ in range(5)]
    pieces = [part for number, step in enumerate(steps) for part in (step, b"piece %d" % number)]
    kept = KeptExchanges()
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=pieces)) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        wire.send(post())
        assert wire.head().startswith(b"HTTP/1.1 200")
        for number, step in enumerate(steps):
            step.set()
            assert wire.chunk() == b"piece %d" % number
        assert wire.chunk() == b""
        recording, _, body = kept.only()

    assert body == b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert recording.first_byte_ms is not None
    assert recording.started_at <= recording.ended_at


def test_a_request_is_forwarded_while_the_client_is_still_sending_it(tmp_path: Path) -> None:
    with UpstreamStub() as stub, LiveGateway(stub, KeptExchanges(), tmp_path) as gateway, gateway.connect() as wire:
        wire.send(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n")
        for number in range(1, 4):
            wire.send(b"0123456789")
            stub.wait_received(10 * number)
        assert wire.answer()[0].startswith(b"HTTP/1.1 200")

    assert stub.seen[0].body == b"0123456789" * 3


@pytest.mark.hazard(57)
def test_a_hundred_megabytes_pass_unchanged_in_both_directions_and_are_recorded(tmp_path: Path) -> None:
    expected = hashlib.sha256()
    for block in random_blocks(LARGE):
        expected.update(block)
    kept = Digests()
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=random_blocks(LARGE), framing="length", length=LARGE)) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        wire.send(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % LARGE)
        for block in random_blocks(LARGE):
            wire.send(block)
        head = wire.head()
        got = hashlib.sha256()
        for _ in range(LARGE // MIB):
            got.update(wire.exactly(MIB))

    assert f"content-length: {LARGE}".encode() in head
    assert got.hexdigest() == stub.seen[0].sha256 == expected.hexdigest()
    # Both directions are recorded unchanged, unless the disk was too slow; then the recording is marked incomplete.
    ((request, response, complete),) = kept.found
    assert not complete or (request, response) == (expected.hexdigest(), expected.hexdigest())
    assert gateway.counts.kept == 1
    assert gateway.counts.incomplete == (not complete)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.hazard(57)
def test_a_slow_reader_slows_down_its_provider_without_using_memory(tmp_path: Path) -> None:
    """The bytes in flight never exceed what the sockets and a few buffers hold."""
    bound = max_in_flight()
    size = bound + LARGE
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=random_blocks(size), framing="length", length=size)) as stub,
        LiveGateway(stub, Digests(), tmp_path, limits=RecorderLimits(body_size=MIB)) as gateway,
        gateway.connect() as wire,
    ):
        wire.send(post())
        wire.head()
        for taken in range(0, size, MIB):
            assert stub.sent - taken < bound
            wire.exactly(MIB)

    assert stub.sent == size


@pytest.mark.hazard(57)
def test_a_slow_provider_slows_down_its_client(tmp_path: Path) -> None:
    """The provider responds without reading, so the client cannot send its body."""
    bound = max_in_flight()
    size = bound + LARGE
    go_on = threading.Event()
    answer = StubResponse(pieces=(b"begun", go_on, b"done"), before_body=True)
    with (
        UpstreamStub(lambda _seen: answer) as stub,
        LiveGateway(stub, Digests(), tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        wire.send(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX-Answer-Early: 1\r\nContent-Length: %d\r\n\r\n" % size)
        wire.head()
        assert wire.chunk() == b"begun"
        sent = send_until_blocked(wire, size)
        go_on.set()

    assert sent < bound


def send_until_blocked(wire: ClientConnection, size: int) -> int:
    sent = 0
    wire.socket.settimeout(1)
    try:
        for block in random_blocks(size):
            sent += wire.socket.send(block)
    except TimeoutError:
        pass
    return sent


@pytest.mark.hazard(57)
def test_a_blocked_exchange_handler_delays_no_stream_and_uses_bounded_memory(tmp_path: Path) -> None:
    hanging = threading.Event()
    found: list[RecordedExchange] = []

    def handle(recording: RecordedExchange) -> None:
        assert hanging.wait(PATIENCE)
        found.append(recording)

    limits = RecorderLimits(in_memory=10_000, total_in_memory=100_000, queued_exchanges=8)
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=[b"e" * 1000] * 50)) as stub,
        LiveGateway(stub, handle, tmp_path, limits=limits) as gateway,
    ):
        for _ in range(20):
            assert len(gateway.request(post("/v1/messages", b"r" * 5_000))[1]) == 50_000
        # An exchange is handed on a moment after its client has the response.
        eventually(lambda: gateway.counts.dropped)
        hanging.set()

    counts = gateway.counts
    assert counts.kept + counts.dropped == 20
    assert len(found) == counts.kept


def test_concurrent_streams_are_kept_apart(tmp_path: Path) -> None:
    def answer(seen: ReceivedRequest) -> StubResponse:
        return StubResponse(pieces=[b"data: %s %d\n\n" % (seen.body, number) for number in range(50)])

    kept = KeptExchanges()
    with UpstreamStub(answer) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        wires = [gateway.connect() for _ in range(60)]
        for number, wire in enumerate(wires):
            wire.send(post("/v1/messages", b"stream %d" % number))
        for number, wire in enumerate(wires):
            with wire:
                assert wire.answer()[1] == b"".join(b"data: stream %d %d\n\n" % (number, at) for at in range(50))
        found = kept.wait(60)

    assert sorted(request for _, request, _ in found) == sorted(b"stream %d" % number for number in range(60))
    assert all(response.startswith(b"data: " + request + b" 0") for _, request, response in found)
