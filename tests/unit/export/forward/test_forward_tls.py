"""Certificates are always verified."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from hypaware.export.sink import DestinationDenied, DestinationUnreachable
from hypaware.home import Home
from tests.support.forward_servers import chunk, lines, opened, settings
from tests.support.plain_server import INGEST, PlainServer


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """An authority that this process trusts, like that of a company."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return authority


def serving(authority: trustme.CA, name: str) -> PlainServer:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return PlainServer(None, tls=context)


def ship(home: Home, url: str) -> None:
    async def work() -> None:
        async with opened(settings(home, url)) as sink:
            await sink.ship(chunk(), lines(20_000), 0)

    asyncio.run(work())


def test_rows_are_sent_to_a_server_with_a_valid_certificate(home: Home, authority: trustme.CA) -> None:
    with serving(authority, "127.0.0.1") as server:
        assert server.url.startswith("https://")
        ship(home, server.url)

    assert len(server.rows()) == 20_000


def test_a_certificate_for_another_host_is_denied(home: Home, authority: trustme.CA) -> None:
    with (
        serving(authority, "other.example") as server,
        pytest.raises(DestinationDenied, match="IP address mismatch") as denied,
    ):
        ship(home, server.url)

    assert (denied.value.kind, server.requests) == ("certificate", [])
    assert "SSL_CERT_FILE" in str(denied.value.repair)


@pytest.mark.usefixtures("authority")
def test_a_certificate_of_an_unknown_authority_is_denied(home: Home) -> None:
    with (
        serving(trustme.CA(), "127.0.0.1") as server,
        pytest.raises(DestinationDenied, match="is not trusted") as denied,
    ):
        ship(home, server.url)

    assert (denied.value.kind, server.received(INGEST)) == ("certificate", [])


@pytest.mark.usefixtures("authority")
def test_a_server_without_tls_is_unreachable(home: Home) -> None:
    with PlainServer(None) as server, pytest.raises(DestinationUnreachable, match="TLS failed"):
        ship(home, server.url.replace("http:", "https:"))
