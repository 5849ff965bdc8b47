"""The client of the JavaScript original at this server: the requests that it sends, and what it does with the answers.

All its installations call themselves `hypaware-local`. A batch id is a hash that includes the path of its cache and the
body. It repeats every batch that gets another answer than 202, and reports `partial` as long as one of them fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from hypaware.home import Home
from hypaware.server import auth
from tests.support.light_home import flush
from tests.support.light_lake import read_lake
from tests.support.original_cache import row
from tests.support.receiver import Client, Reply, Server, stored
from tests.support.rows import DATASET

PATH = "/home/dev/.hyp/hypaware/cache/datasets/ai_gateway_messages/source=claude/table"


@dataclass
class OriginalClient:
    url: str
    bootstrap_token: str
    jwt: str = ""
    gateway_id: str = ""
    watermark: int = 0
    answers: list[Reply] = field(default_factory=list)

    def join(self) -> OriginalClient:
        asked = json.dumps({"bootstrap_token": self.bootstrap_token}).encode()
        self._accept(Client(self.url).ask("POST", "/v1/identity/bootstrap", asked, content_type="application/json"))
        return self

    def refresh(self) -> None:
        self._accept(Client(self.url).ask("POST", "/v1/identity/refresh", authorization=f"Bearer {self.jwt}"))

    def export(self, rows: list[dict[str, Any]], signal: str = "proxy", *, lose_answer: bool = False) -> str:
        """Send the rows above the watermark as one chunk, and return the status that the client reports."""
        body = "".join(json.dumps(each) + "\n" for each in rows[self.watermark :]).encode()
        chunk = "\0".join([signal, PATH, str(self.watermark), ""]).encode() + body
        answer = Client(self.url).ask(
            "POST",
            f"/v1/ingest/{signal}",
            body,
            authorization=f"Bearer {self.jwt}",
            content_type="application/x-ndjson",
            x_hyp_batch_id=hashlib.sha256(chunk).hexdigest()[:32],
        )
        self.answers.append(answer)
        if answer.status != 202 or lose_answer:
            return "partial"
        if signal == "proxy":
            self.watermark = len(rows)
        return "exported"

    def _accept(self, answer: Reply) -> None:
        assert answer.status == 200, answer
        self.jwt = answer.json["jwt"]
        payload = self.jwt.split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        assert isinstance(subject, str)
        assert subject, "missing gateway identity (sub claim)"
        assert isinstance(answer.json["expires_at"], int)
        self.gateway_id = subject


@pytest.fixture
def original(server: Server) -> OriginalClient:
    return OriginalClient(server.url, server.token).join()


def lake_rows(home: Home) -> list[tuple[str, str]]:
    return sorted((each["gateway_id"], each["part_id"]) for each in read_lake(home, DATASET))


@pytest.mark.hazard(107)
def test_two_installations_with_the_same_name_stay_two(server: Server, home: Home, original: OriginalClient) -> None:
    other = OriginalClient(server.url, server.token).join()
    assert original.gateway_id != other.gateway_id
    # The same path, the same name and the same rows: their batch ids are equal.
    for client in (original, other):
        assert client.export([row(number) for number in range(3)]) == "exported"
        assert client.answers[-1].json == {"stored": 3}
    flush(home)

    ids = sorted([original.gateway_id, other.gateway_id])
    assert lake_rows(home) == [(gateway, f"old-{number}#0") for gateway in ids for number in range(3)]
    assert [(each.gateway_id, each.bound_by, each.label) for each in auth.list_gateways(home)] == [
        (gateway, "token", "tests") for gateway in ids
    ]


def test_an_installation_keeps_its_id_when_it_renews_its_token(
    server: Server, home: Home, original: OriginalClient
) -> None:
    enrolled_as = original.gateway_id
    rows = [row(number) for number in range(4)]
    original.export(rows[:2])
    original.refresh()
    assert original.gateway_id == enrolled_as
    original.export(rows)
    flush(home)

    assert lake_rows(home) == [(enrolled_as, f"old-{number}#0") for number in range(4)]


@pytest.mark.hazard(22)
def test_a_chunk_that_grew_before_its_retry_is_stored_once(
    server: Server, home: Home, original: OriginalClient
) -> None:
    """Its answer was lost, rows were added, and the retry has another body and so another id."""
    rows = [row(number) for number in range(5)]
    assert original.export(rows[:3], lose_answer=True) == "partial"
    assert original.export(rows[:3], lose_answer=True) == "partial"
    assert original.answers[-1].json == {"stored": 0, "duplicate": True}
    assert original.export(rows) == "exported"
    assert len(stored(home)) == 8
    flush(home)

    assert lake_rows(home) == [(original.gateway_id, f"old-{number}#0") for number in range(5)]


@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_its_own_telemetry_does_not_leave_it_partial_forever(
    signal: str, server: Server, home: Home, original: OriginalClient
) -> None:
    for _ in range(2):
        assert original.export([{"body": "a log line", "severity": "INFO"}], signal) == "exported"
    assert original.answers[-1].json == {"stored": 0, "ignored": True}
    assert original.export([row(1)]) == "exported"
    assert len(stored(home)) == 1
    assert original.export([{}], "unknown") == "partial"


def test_rows_of_our_own_client_for_an_unsupported_signal_are_refused(server: Server) -> None:
    """It keeps them until a server stores them."""
    gateway = server.enrolled()
    answer = gateway.ask("POST", "/v1/ingest/logs", b"{}\n", Content_Type="application/x-ndjson", X_Hyp_Batch_Id="b-1")
    assert (answer.status, answer.error) == (404, "unknown_signal")


def test_an_installation_cannot_write_as_another_gateway(server: Server, home: Home, original: OriginalClient) -> None:
    server.enrolled("gw-1")
    assert original.export([row(1, gateway_id="gw-1")]) == "exported"
    flush(home)
    assert lake_rows(home) == [(original.gateway_id, "old-1#0")]
