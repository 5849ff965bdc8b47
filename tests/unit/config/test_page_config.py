"""`[page]`: only addresses that no other machine can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware import config
from hypaware.config import PageConfig
from hypaware.errors import ConfigError


def parse(text: str) -> PageConfig:
    return config.parse_config(f"version = 1\n[page]\n{text}\n", Path("config.toml")).page


def test_the_page_is_on_and_at_its_own_port_unless_the_config_says_otherwise() -> None:
    assert parse("") == PageConfig(enabled=True, listen="127.0.0.1:4177")
    assert parse("enabled = false").enabled is False


@pytest.mark.parametrize("address", ["127.0.0.1:80", "localhost:4177", "[::1]:4177", "127.0.0.1:0"])
def test_loopback_addresses_are_accepted(address: str) -> None:
    assert parse(f'listen = "{address}"').listen == address


@pytest.mark.parametrize(
    "address",
    [
        *(
            "0.0.0.0:4177",
            "[::]:4177",
            "192.0.2.7:4177",
            "example.com:4177",
            "127.0.0.1.example.com:4177",
            "127.0.0.2:1",
        ),
        *("evil.localhost:4177", ":4177", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:x", "::1:4177", "unix:/tmp/x"),
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"page\.listen"):
        parse(f'listen = "{address}"')
