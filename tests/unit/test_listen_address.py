from __future__ import annotations

import socket

from hypaware.listen_address import free_beside, why_not


def taken(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_the_suggested_address_is_free() -> None:
    """The next number may be taken too: a repair that names it would only lead to the next error."""
    with taken() as one:
        port = one.getsockname()[1]
        first = free_beside(f"127.0.0.1:{port}")
        assert why_not(f"127.0.0.1:{port}") is not None
        assert why_not(first) is None
        with taken(int(first.rpartition(":")[2])):
            second = free_beside(f"127.0.0.1:{port}")
            assert second != first
            assert why_not(second) is None


def test_an_unusable_host_or_port_is_replaced() -> None:
    assert free_beside("192.0.2.1:65535").startswith("127.0.0.1:")
    assert why_not(free_beside("127.0.0.1:65535")) is None
    assert why_not(free_beside("nonsense")) is None
