"""Whose a gateway's id is, and the tokens that gateways come with."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hypaware.state import gateways, tokens
from hypaware.state.gateways import Claim
from hypaware.state.store import Store
from hypaware.state.tokens import Token

SECRET = Claim("default", "gw-1", "label:alice", "hash of a secret")
PLAIN = Claim("default", "gw-1", "label:alice")
NOW = datetime.now(UTC)


def bind(store: Store, claim: Claim) -> bool:
    with store.transaction() as connection:
        return gateways.bind(connection, claim)


@pytest.mark.hazard(95)
def test_an_id_stays_bound_to_its_secret_for_any_token(store: Store) -> None:
    assert bind(store, SECRET)
    assert bind(store, replace(SECRET, owner="label:bob"))
    assert not bind(store, replace(SECRET, secret_hash="hash of another"))
    assert not bind(store, PLAIN)
    assert bind(store, replace(SECRET, tenant="other", secret_hash="hash of another")), "tenants are apart"


def test_an_id_without_a_secret_stays_bound_to_the_owner_of_its_token(store: Store) -> None:
    assert bind(store, PLAIN)
    assert bind(store, PLAIN)
    assert not bind(store, replace(PLAIN, owner="label:bob"))
    assert not bind(store, replace(SECRET, owner="label:bob"))
    assert bind(store, SECRET), "its owner may give it a secret"
    assert not bind(store, PLAIN)


def test_a_released_id_can_be_claimed_by_another_client(store: Store) -> None:
    bind(store, SECRET)
    with store.transaction() as connection:
        assert gateways.release(connection, "default", "gw-1")
        assert not gateways.release(connection, "default", "gw-2")
        assert [known.bound_by for known in gateways.all_gateways(connection, "default")] == [None]
    assert bind(store, replace(PLAIN, owner="label:bob"))
    assert not bind(store, SECRET)


def test_a_missing_host_leaves_the_recorded_host_unchanged(store: Store) -> None:
    bind(store, replace(SECRET, host="one.local"))
    bind(store, SECRET)
    with store.transaction() as connection:
        gateways.seen(connection, "default", {"gw-1": None, "gw-9": "nobody"})
        (known,) = gateways.all_gateways(connection, "default")
    assert known.host == "one.local"
    with store.transaction() as connection:
        gateways.seen(connection, "default", {"gw-1": "two.local"})
        (known,) = gateways.all_gateways(connection, "default")
    assert known.host == "two.local"


def token(id: str, label: str | None, expires_at: datetime | None = None) -> Token:
    return Token(id, label, NOW.isoformat(), expires_at.isoformat() if expires_at else None, None, None)


def test_a_token_is_found_by_hash_and_revoked_by_id_or_label(store: Store) -> None:
    with store.transaction() as connection:
        for number, label in enumerate(["alice", "alice", "bob", "tok-0", None]):
            tokens.add(connection, token(f"tok-{number}", label), f"hash {number}")
        assert tokens.find(connection, "hash 1") == token("tok-1", "alice")
        assert tokens.find(connection, "hash 9") is None
        assert tokens.revoke(connection, "tok-0") == ["tok-0"], "an id goes before a label"
        assert tokens.revoke(connection, "alice") == ["tok-1"], "what was ended is not ended again"
        assert tokens.revoke(connection, "nobody") == []
        assert tokens.revoked_ids(connection) == {"tok-0", "tok-1"}
        tokens.used(connection, "tok-2")
        assert [bool(each.last_used_at) for each in tokens.all_tokens(connection)] == [False, False, True, False, False]


def test_a_token_reports_why_it_is_refused() -> None:
    later = NOW + timedelta(hours=1)
    assert token("t", None).refusal(NOW) is None
    assert token("t", None, later).refusal(NOW) is None
    assert token("t", None, later).refusal(later) == "expired"
    assert replace(token("t", None, later), revoked_at=NOW.isoformat()).refusal(later) == "revoked"
