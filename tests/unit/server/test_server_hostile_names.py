"""Names from outside are values in the ledger and never part of a path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hypaware.home import Home
from tests.support.receiver import Gateway, Server

pytestmark = pytest.mark.hazard(61)

TRICKS = [
    "../../../../etc/passwd",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..%2f..%2f",
    "%2e%2e%2f",
    "%00",
    "~root",
    "$(touch x)",
    "`id`",
    "a;b|c&d",
    "'; DROP TABLE batches; --",
    '"',
    "{}",
    "a b",
    "con",
    "x" * 200,
    "🙂",
]
SEGMENT = re.compile(r"spool/ai_gateway_messages/sealed/\d{13}-[0-9a-f]{12}\.\d+\.jsonl")


def files(home: Home) -> set[str]:
    return {str(path.relative_to(home.root)) for path in home.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("trick", TRICKS)
def test_malicious_names_create_no_file_except_segments(server: Server, home: Home, trick: str, tmp_path: Path) -> None:
    before, around = files(home), set(tmp_path.iterdir())
    gateway = Gateway(
        server.url,
        server.client.bootstrap(
            bootstrap_token=server.token, gateway_id=trick, gateway_secret="a secret of many letters", host=trick
        ).json["jwt"],
        trick,
        life=trick.encode("ascii", "ignore").decode() or "life",
    )
    names = {
        "X_Hyp_Gateway": _quoted(trick),
        "X_Hyp_Incarnation": _quoted(trick),
        "X_Hyp_Source": _quoted(trick),
        "X_Hyp_Host": _quoted(trick),
    }
    body = gateway.rows(1, client_name=trick, session_id=trick)
    # http.client sends headers as Latin-1: these are the bytes of the UTF-8.
    given = trick.encode().decode("latin-1")
    answer = gateway.send(given, body, **names, X_Hyp_Seq_Range="0-1")

    assert answer.status == 202, answer
    (made,) = files(home) - before - {name for name in files(home) if name.startswith("state.db")}
    assert SEGMENT.fullmatch(made)
    assert set(tmp_path.iterdir()) == around
    requested = gateway.ask("GET", f"/v1/ingest/proxy/batches/{_quoted(trick)}", X_Hyp_Incarnation=_quoted(trick))
    if trick not in (".", ".."):  # no URL path can end in it
        assert requested.status == 200, requested
    query = f"source={_quoted(trick)}&incarnation={_quoted(trick)}"
    assert gateway.ask("GET", f"/v1/ingest/proxy/watermark?{query}").json["last"] == 1


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
