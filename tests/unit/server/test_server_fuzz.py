"""Malformed requests: each is answered, none stores anything but rows, none stops the server."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.home import Home
from tests.support.processes import PATIENCE
from tests.support.receiver import LIFE, Gateway, Server, incoming_files, served, stored
from tests.support.strategies import json_values

pytestmark = pytest.mark.hazard(60)
# Starting a server is slow, so all examples of a test share one; ids separate their rows.
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
KNOWN = {200, 202, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429}

header_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(str.strip)
paths = st.one_of(
    st.sampled_from(
        [
            "/v1/ingest/proxy",
            "/v1/ingest/proxy/watermark?source=a&incarnation=b",
            "/v1/ingest/proxy/batches/x",
            "/v1/identity/bootstrap",
            "/v1/identity/refresh",
            "/v1/config",
            "/v1/capabilities",
        ]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).map(lambda text: f"/{text}"),
)
names = st.sampled_from(
    [
        "Content-Type",
        "Content-Encoding",
        "X-Hyp-Batch-Id",
        "X-Hyp-Gateway",
        "X-Hyp-Incarnation",
        "X-Hyp-Source",
        "X-Hyp-Seq-Range",
        "X-Hyp-Acked-To",
        "X-Hyp-Content-Sha256",
        "X-Hyp-Host",
        "Authorization",
        "Expect",
    ]
)
values = st.one_of(
    header_text,
    st.sampled_from(["application/x-ndjson", "gzip", "zstd", "0-5", "5", "gw-1", LIFE, "claude", "100-continue"]),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="hyp-fuzz-") as folder, served(Home(Path(folder) / "home")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server) -> Gateway:
    return server.enrolled()


@several
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"]),
    path=paths,
    headers=st.dictionaries(names, values, max_size=6),
    body=st.one_of(st.binary(max_size=200), json_values.map(lambda value: json.dumps(value).encode())),
)
def test_request_of_any_shape_is_answered(
    gateway: Gateway, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    answer = gateway.ask(method, path, body, **{name.replace("-", "_"): value for name, value in headers.items()})

    assert answer.status in KNOWN | {417}, answer


@several
@given(
    lines=st.lists(
        st.one_of(st.binary(max_size=50), json_values.map(lambda value: json.dumps(value).encode())),
        min_size=1,
        max_size=5,
    )
)
def test_lines_that_are_not_rows_are_rejected(gateway: Gateway, server: Server, lines: list[bytes]) -> None:
    before = stored(server.home)
    answer = gateway.send("fuzz", b"\n".join(lines))

    assert answer.status in (202, 422)
    if answer.status == 202:
        assert answer.json["stored"] == 0, "blank lines are ignored"
    else:
        assert 1 <= answer.json["line"] <= len(lines) + 50
    assert stored(server.home) == before
    assert incoming_files(server.home) == []


@several
@given(
    changes=st.dictionaries(
        st.sampled_from(
            ["role", "message_id", "attributes", "message_created_at", "part_index", "is_error", "gateway_id", "extra"]
        ),
        json_values,
        min_size=1,
        max_size=3,
    )
)
def test_row_with_arbitrary_values_is_stored_or_rejected(
    gateway: Gateway, server: Server, changes: dict[str, Any]
) -> None:
    before = len(stored(server.home))
    answer = gateway.send(
        f"row {before} {hash(json.dumps(changes))}",
        gateway.rows(1, **changes)
        if "gateway_id" not in changes
        else gateway.rows(1).replace(b'"gw-1"', json.dumps(changes["gateway_id"]).encode()),
    )

    assert answer.status in (202, 422), answer
    assert len(stored(server.home)) == before + (answer.json.get("stored", 0) if answer.status == 202 else 0)


@several
@given(noise=st.binary(min_size=1, max_size=300))
def test_bytes_that_are_not_http_do_not_affect_others(gateway: Gateway, noise: bytes) -> None:
    place = urlsplit(gateway.url)
    with socket.create_connection((place.hostname, place.port or 0), timeout=PATIENCE) as wire:
        wire.sendall(noise)
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(4096):
            pass
    assert gateway.ask("GET", "/healthz").status == 200
