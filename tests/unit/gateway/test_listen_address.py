from __future__ import annotations

import socket

from hypaware.gateway.handover import SERVER_PORT, bind_problem, find_free_address


def taken(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_the_suggested_address_is_free() -> None:
    """The next port may be in use too, and suggesting it would only cause the next error."""
    with taken() as one:
        port = one.getsockname()[1]
        first = find_free_address(f"127.0.0.1:{port}")
        assert bind_problem(f"127.0.0.1:{port}") is not None
        assert bind_problem(first) is None
        with taken(int(first.rpartition(":")[2])):
            second = find_free_address(f"127.0.0.1:{port}")
            assert second != first
            assert bind_problem(second) is None


def test_an_unusable_host_or_port_is_replaced() -> None:
    assert find_free_address("192.0.2.1:65535").startswith("127.0.0.1:")
    assert bind_problem(find_free_address("127.0.0.1:65535")) is None
    assert bind_problem(find_free_address("nonsense")) is None


def test_the_default_port_of_the_server_is_not_suggested() -> None:
    assert find_free_address(f"127.0.0.1:{SERVER_PORT - 1}") != f"127.0.0.1:{SERVER_PORT}"
