"""The binding of gateway ids, and bootstrap tokens."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hypaware.state import ledger
from hypaware.state.ledger import GatewayClaim, ServerToken
from hypaware.state.store import StateStore

SECRET = GatewayClaim("default", "gw-1", "label:alice", "hash of a secret")
PLAIN = GatewayClaim("default", "gw-1", "label:alice")
NOW = datetime.now(UTC)


def bind(store: StateStore, claim: GatewayClaim) -> bool:
    with store.transaction() as connection:
        return ledger.bind_gateway(connection, claim)


@pytest.mark.hazard(95)
def test_an_id_stays_bound_to_its_secret_for_any_token(store: StateStore) -> None:
    assert bind(store, SECRET)
    assert bind(store, replace(SECRET, owner="label:bob"))
    assert not bind(store, replace(SECRET, secret_hash="hash of another"))
    assert not bind(store, PLAIN)
    assert bind(store, replace(SECRET, tenant="other", secret_hash="hash of another")), "tenants are separate"


def test_an_id_without_a_secret_stays_bound_to_the_owner_of_its_token(store: StateStore) -> None:
    assert bind(store, PLAIN)
    assert bind(store, PLAIN)
    assert not bind(store, replace(PLAIN, owner="label:bob"))
    assert not bind(store, replace(SECRET, owner="label:bob"))
    assert bind(store, SECRET), "its owner can add a secret"
    assert not bind(store, PLAIN)


def test_a_released_id_can_be_claimed_by_another_client(store: StateStore) -> None:
    bind(store, SECRET)
    with store.transaction() as connection:
        assert ledger.release_gateway(connection, "default", "gw-1")
        assert not ledger.release_gateway(connection, "default", "gw-2")
        assert [known.bound_by for known in ledger.list_gateways(connection, "default")] == [None]
    assert bind(store, replace(PLAIN, owner="label:bob"))
    assert not bind(store, SECRET)


def test_a_missing_host_leaves_the_recorded_host_unchanged(store: StateStore) -> None:
    bind(store, replace(SECRET, host="one.local"))
    bind(store, SECRET)
    with store.transaction() as connection:
        ledger.touch_gateways(connection, "default", {"gw-1": None, "gw-9": "nobody"})
        (known,) = ledger.list_gateways(connection, "default")
    assert known.host == "one.local"
    with store.transaction() as connection:
        ledger.touch_gateways(connection, "default", {"gw-1": "two.local"})
        (known,) = ledger.list_gateways(connection, "default")
    assert known.host == "two.local"


def token(id: str, label: str | None, expires_at: datetime | None = None) -> ServerToken:
    return ServerToken(id, label, NOW.isoformat(), expires_at.isoformat() if expires_at else None, None, None)


def test_a_token_is_found_by_hash_and_revoked_by_id_or_label(store: StateStore) -> None:
    with store.transaction() as connection:
        for number, label in enumerate(["alice", "alice", "bob", "tok-0", None]):
            ledger.add_token(connection, token(f"tok-{number}", label), f"hash {number}")
        assert ledger.find_token(connection, "hash 1") == token("tok-1", "alice")
        assert ledger.find_token(connection, "hash 9") is None
        assert ledger.revoke_tokens(connection, "tok-0") == ["tok-0"], "an id has priority over a label"
        assert ledger.revoke_tokens(connection, "alice") == ["tok-1"], "a revoked token is not revoked again"
        assert ledger.revoke_tokens(connection, "nobody") == []
        assert ledger.revoked_token_ids(connection) == {"tok-0", "tok-1"}
        ledger.touch_token(connection, "tok-2")
        assert [bool(each.last_used_at) for each in ledger.list_tokens(connection)] == [
            False,
            False,
            True,
            False,
            False,
        ]


def test_a_token_reports_why_it_is_refused() -> None:
    later = NOW + timedelta(hours=1)
    assert token("t", None).refusal(NOW) is None
    assert token("t", None, later).refusal(NOW) is None
    assert token("t", None, later).refusal(later) == "expired"
    assert replace(token("t", None, later), revoked_at=NOW.isoformat()).refusal(later) == "revoked"
