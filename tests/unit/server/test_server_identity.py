"""Authentication: enrolment, signed tokens, gateway ids and revocation."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import jwt
import pytest

from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.server import auth
from hypaware.server.auth import Caller, TokenSigner
from hypaware.server.limits import ServerLimits
from hypaware.state.home_opener import open_home
from tests.support.receiver import Client, Gateway, Server, incoming_files, served, stored

SECRET = "a secret of sixteen letters and more"


def test_bootstrap_token_can_be_exchanged_repeatedly(server: Server) -> None:
    for _ in range(2):
        answer = server.client.bootstrap(bootstrap_token=server.token)
        assert answer.status == 200
        assert answer.json["expires_at"] > time.time()
        assert answer.headers["cache-control"] == "no-store"
        assert jwt.get_unverified_header(answer.json["jwt"])["alg"] == "HS256"


@pytest.mark.parametrize("given", ["", "hypb_", "hypb_" + "A" * 43, "x" * 10_000])
def test_wrong_bootstrap_token_is_rejected(server: Server, given: str) -> None:
    assert server.client.bootstrap(bootstrap_token=given).status == 401


@pytest.mark.parametrize(
    "requested",
    [
        {"bootstrap_token": 7},
        {"bootstrap_token": "\ud800"},
        {"bootstrap_token": None},
        {"gateway_id": "gw"},
        {"gateway_secret": SECRET},
        {"gateway_id": "gw", "gateway_secret": "short"},
        {"gateway_id": "", "gateway_secret": SECRET},
        {"gateway_id": "g" * 201, "gateway_secret": SECRET},
        {"gateway_id": "g\n", "gateway_secret": SECRET},
        {"gateway_id": ["g"], "gateway_secret": SECRET},
        {"gateway_id": "gw-1.0123456789ab", "gateway_secret": SECRET},
        {"host": "h" * 1000},
    ],
)
def test_invalid_enrolment_is_rejected(server: Server, requested: dict[str, object]) -> None:
    answer = server.client.bootstrap(**{"bootstrap_token": server.token, **requested})

    assert answer.status == 400
    assert auth.list_gateways(server.home) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"null", b'"text"'])
def test_enrolment_must_be_a_json_object(server: Server, body: bytes) -> None:
    assert server.client.ask("POST", "/v1/identity/bootstrap", body).status == 400


def test_large_enrolment_is_rejected(server: Server) -> None:
    assert server.client.ask("POST", "/v1/identity/bootstrap", b" " * 20_000).status == 413


def test_expired_token_enrols_no_new_gateway_and_keeps_enrolled_ones(server: Server) -> None:
    gateway = server.enrolled()
    earlier = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    with closing(open_home(server.home).store) as store, store.transaction() as connection:
        connection.execute("UPDATE server_tokens SET expires_at = ?", (earlier,))

    assert server.client.bootstrap(bootstrap_token=server.token).status == 401
    assert gateway.deliver(0, 5).status == 202
    assert gateway.ask("POST", "/v1/identity/refresh").status == 200


def test_revoked_token_ends_the_gateways_enrolled_with_it(server: Server) -> None:
    other_token, _ = auth.create_token(server.home, "others")
    gateway, other = server.enrolled("gw-1"), server.enrolled("gw-2", other_token)
    auth.revoke_token(server.home, "tests")

    assert server.client.bootstrap(bootstrap_token=server.token).status == 401
    assert gateway.deliver(0, 5).status == 401
    assert gateway.ask("POST", "/v1/identity/refresh").status == 401
    assert other.deliver(0, 5).status == 202


def test_signed_token_is_renewed_for_the_same_gateway(server: Server, gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v1/identity/refresh")

    renewed = Gateway(server.url, answer.json["jwt"], gateway.gateway_id)
    assert renewed.deliver(0, 5).status == 202
    assert gateway.watermark()["last"] == 5


def test_every_gateway_endpoint_needs_a_token(server: Server, gateway: Gateway, home: Home) -> None:
    stranger, forged = Client(server.url), server.client
    claims = jwt.decode(gateway.jwt or "", options={"verify_signature": False})
    key = auth.signing_key(home, server.parts.store)
    bad = [
        "",
        "x",
        "Bearer",
        "Bearer x.y.z",
        f"Basic {gateway.jwt}",
        f"Bearer \xff{gateway.jwt}",
        f"Bearer {gateway.jwt}x",
        "Bearer " + jwt.encode(claims, b"k" * 32, "HS256"),
        "Bearer " + jwt.encode(claims, "", "none"),
        "Bearer " + jwt.encode({**claims, "exp": 1}, key, "HS256"),
        "Bearer " + jwt.encode({name: claims[name] for name in claims if name != "tid"}, key, "HS256"),
        "Bearer " + jwt.encode(claims, key * 2, "HS512"),
    ]
    requested = [
        ("POST", "/v1/ingest/proxy"),
        ("POST", "/v1/ingest/nothing"),
        ("GET", "/v1/ingest/proxy/batches/b-1"),
        ("GET", "/v1/ingest/proxy/watermark?source=claude&incarnation=i"),
        ("POST", "/v1/identity/refresh"),
        ("GET", "/v1/config"),
    ]
    for method, path in requested:
        answer = stranger.ask(method, path)
        assert (answer.status, answer.error) == (401, "unauthorized"), path
        for value in bad:
            assert forged.ask(method, path, Authorization=value).status == 401, value
    assert stored(home) == []
    assert incoming_files(home) == []


def test_signed_token_expires() -> None:
    now = [1_000.0]
    signer = TokenSigner(b"k" * 32, lambda: now[0])
    signed = signer.sign(Caller("tok", "owner", "gw-1"))

    assert signed.expires_at == 1_000 + auth.LIFETIME_SECONDS
    now[0] = signed.expires_at - 1
    assert signer.verify(signed.jwt) == Caller("tok", "owner", "gw-1")
    now[0] = signed.expires_at
    assert signer.verify(signed.jwt) is None


@pytest.mark.hazard(95)
def test_gateway_id_belongs_to_the_secret_of_its_first_enrolment(server: Server) -> None:
    server.enrolled("gw-1")
    other_token, _ = auth.create_token(server.home, "others")
    for token in (server.token, other_token):
        answer = server.client.bootstrap(bootstrap_token=token, gateway_id="gw-1", gateway_secret=SECRET)
        assert (answer.status, answer.error) == (403, "gateway_bound")
    assert server.enrolled("gw-1", other_token).deliver(0, 5).status == 202


def test_released_gateway_id_can_be_enrolled_again(server: Server) -> None:
    server.enrolled("gw-1").deliver(0, 5)
    auth.release_gateway(server.home, "gw-1")

    answer = server.client.bootstrap(bootstrap_token=server.token, gateway_id="gw-1", gateway_secret=SECRET)
    again = Gateway(server.url, answer.json["jwt"], "gw-1")
    assert again.watermark()["last"] == 5, "earlier deliveries stay known"


def test_secrets_and_tokens_are_not_stored(server: Server, home: Home) -> None:
    server.enrolled("gw-1").deliver(0, 5)
    held = b"".join(path.read_bytes() for path in home.root.rglob("*") if path.is_file())

    assert server.token.encode() not in held
    assert b"the secret of gw-1" not in held


def test_server_files_are_readable_only_by_their_owner(server: Server, home: Home) -> None:
    for path in (home.root / "server").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_damaged_signing_key_is_reported_with_its_repair(home: Home) -> None:
    with served(home):
        pass
    key = home.root / "server" / "signing.key"
    key.write_bytes(b"short")
    with pytest.raises(StateError, match="damaged") as found, served(home):
        pass
    assert found.value.repair == (f"rm {key}",)


def test_signed_tokens_and_server_id_survive_a_restart(home: Home) -> None:
    with served(home) as first:
        token = first.enrolled().jwt
        name = first.client.ask("GET", "/v1/capabilities").json["server_id"]
    with served(home) as second:
        assert Gateway(second.url, token).deliver(0, 5).status == 202
        assert second.client.ask("GET", "/v1/capabilities").json["server_id"] == name


def test_token_without_a_gateway_is_rejected(server: Server) -> None:
    """Earlier versions signed such tokens."""
    signer = TokenSigner(auth.signing_key(server.home, server.parts.store))
    nameless = signer.sign(Caller("tok", "owner", ""))
    assert Client(server.url, nameless.jwt).ask("POST", "/v1/identity/refresh").status == 401


def test_operator_can_list_gateways(server: Server, home: Home) -> None:
    server.enrolled("gw-1").deliver(0, 5)
    server.enrolled("gw-2").deliver(0, 5, X_Hyp_Host="t%C3%A4st.example")

    one, other = auth.list_gateways(home)
    assert (one.gateway_id, one.host, one.label, one.bound_by) == ("gw-1", "gw-1.local", "tests", "secret")
    assert other.host == "täst.example"
    assert one.first_seen_at <= one.last_seen_at


def test_enrolments_from_one_address_are_limited(home: Home) -> None:
    with served(home, ServerLimits(enrolments_per_minute=3)) as server:
        answers = [server.client.bootstrap(bootstrap_token="hypb_guess") for _ in range(4)]

    assert [answer.status for answer in answers] == [401, 401, 401, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_config_endpoint_returns_404(gateway: Gateway) -> None:
    assert gateway.ask("GET", "/v1/config", If_None_Match='"x"').status == 404
