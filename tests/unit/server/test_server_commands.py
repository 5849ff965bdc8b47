"""`hyp server token` and `hyp server gateways` while a server runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from hypaware.home import Home
from tests.support.command import Hyp
from tests.support.receiver import Server, served


@pytest.fixture
def server(home: Home) -> Iterator[Server]:
    with served(home) as running:
        yield running


@pytest.fixture
def hyp(home: Home) -> Hyp:
    return Hyp(home.root)


def test_token_is_shown_once_and_can_enrol(hyp: Hyp, server: Server) -> None:
    made = hyp.run("server", "token", "create", "--label", "alice")
    assert made.code == 0
    token = made.out.strip()
    assert re.fullmatch(r"hypb_[A-Za-z0-9_-]{43}", token)
    assert server.enrolled("gw-1", token).deliver(0, 5).status == 202

    listed = hyp.run("server", "token", "list")
    assert "alice" in listed.out
    assert token not in listed.out
    (found,) = [each for each in hyp.ok("server", "token", "list")["tokens"] if each["label"] == "alice"]
    assert found.keys() == {"id", "label", "status", "created_at", "expires_at", "revoked_at", "last_used_at", "use"}
    assert (found["status"], found["expires_at"]) == ("ok", None)
    assert found["last_used_at"]


def test_token_is_revoked_by_label_or_id(hyp: Hyp, server: Server) -> None:
    one = hyp.ok("server", "token", "create", "--label", "alice", "--ttl", "7d")
    two = hyp.ok("server", "token", "create")
    gateway = server.enrolled("gw-1", one["token"])
    assert one["expires_at"] > one["created_at"]

    assert hyp.ok("server", "token", "revoke", "alice") == {"revoked": [one["id"]]}
    assert gateway.deliver(0, 5).status == 401
    assert hyp.run("server", "token", "revoke", two["id"]).code == 0
    assert server.client.bootstrap(bootstrap_token=two["token"]).status == 401
    again = hyp.run("server", "token", "revoke", "alice", "--json")
    assert (again.code, again.json["error"]["kind"]) == (1, "unknown_token")


@pytest.mark.parametrize("arguments", [["--ttl", "soon"], ["--ttl", "0s"], ["--ttl", "7"], ["--label", " "]])
def test_invalid_token_options_are_rejected(hyp: Hyp, arguments: list[str]) -> None:
    assert hyp.run("server", "token", "create", *arguments).code == 2
    assert hyp.ok("server", "token", "list") == {"tokens": []}
    assert hyp.run("server", "token", "list").out == "no tokens; to create one: hyp server token create\n"
    assert hyp.run("server", "gateways").out == "no gateway has enrolled or delivered yet\n"


def test_gateways_are_listed_and_released(hyp: Hyp, server: Server) -> None:
    server.enrolled("gw-1").deliver(0, 5)

    (found,) = hyp.ok("server", "gateways")["gateways"]
    assert (found["gateway_id"], found["host"], found["label"]) == ("gw-1", "gw-1.local", "tests")
    assert found["bound_by"] == "secret"
    assert "gw-1.local" in hyp.run("server", "gateways").out
    requested = {"bootstrap_token": server.token, "gateway_id": "gw-1", "gateway_secret": "another secret of it"}
    assert server.client.bootstrap(**requested).status == 403
    assert hyp.ok("server", "gateways", "release", "gw-1") == {"released": "gw-1"}
    assert server.client.bootstrap(**requested).status == 200
    assert hyp.run("server", "gateways", "release", "gw-9").code == 1


@pytest.mark.parametrize(
    ("arguments", "code"), [(["token", "revoke", "x"], 3), (["gateways", "release", "x"], 3), (["gateways"], 0)]
)
def test_only_a_command_that_stores_something_creates_a_home(
    hyp: Hyp, home: Home, arguments: list[str], code: int
) -> None:
    assert hyp.run("server", *arguments, "--json").code == code
    assert not home.root.exists()
