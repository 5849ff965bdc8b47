"""A client that another distribution adds is attached, routed and recorded; nothing of HypAware names it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hypaware import plugins
from hypaware.clients.attach import attach_client, detach_client
from hypaware.clients.client import Client
from hypaware.clients.mcp_entry import mcp_settings
from hypaware.gateway import routes, senders
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.gateway.routes import Routes, read_custom_upstreams
from hypaware.home import Home
from hypaware.privacy.redact import redact_headers
from tests.support import exchange_samples
from tests.support.plugin_distributions import install

EXAMPLE = Path(__file__).parents[3] / "examples/plugin"
GATEWAY = "http://127.0.0.1:18521"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "buy milk"}]}
ANSWER = {
    "id": "1",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "noted"}, "finish_reason": "stop"}],
}


BROKEN = """
from hypaware.clients.client import Client

class Requests:
    dialects = ("anthropic_messages",)

    def find_session(self, request):
        raise RuntimeError("broken")

requests = Requests()
absent = Client("absent", "A part cannot be imported.", requests="no_such_module:X", mcp="no_such_module:X")
raising = Client("raising", "A part fails.", requests="broken_clients:requests")
untyped = Client("untyped", "A value has another type.", traffic={"upstreams": ("https://x.example",)})
"""


def forget_clients() -> None:
    for each in (senders.list_traffic, senders.list_session_headers, senders.list_recorded_headers):
        each.cache_clear()
    senders._clients.cache_clear()
    senders._list_readers.cache_clear()
    routes.list_presets.cache_clear()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The example plugin, installed for this test."""
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in declared["entry-points"]["hypaware.clients"].items()]
    install(tmp_path, declared["name"], "\n".join(["[hypaware.clients]", *lines]))
    for path in (tmp_path, EXAMPLE):
        monkeypatch.syspath_prepend(str(path))
    forget_clients()
    found = plugins.find_plugin(plugins.CLIENTS, "scratchpad", Client)
    assert found is not None
    yield found
    forget_clients()


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    folder = tmp_path / "scratchpad"
    folder.mkdir()
    return {"HOME": str(tmp_path), "SCRATCHPAD_HOME": str(folder)}


def test_its_requests_reach_its_own_upstream(client: Client) -> None:
    found = Routes([]).find("/scratchpad/v1/chat/completions")

    assert found is not None
    assert (found.url, found.route.client) == ("https://api.scratchpad.example/v1/chat/completions", "scratchpad")


@pytest.mark.parametrize("before", [None, "colour = red\n", "address = https://mine.example/v1\ncolour = red\n"])
def test_it_is_attached_and_detached(
    client: Client, environment: Mapping[str, str], home: Home, before: str | None
) -> None:
    assert client.settings is not None
    path = client.settings.path(environment)
    if before is not None:
        path.write_text(before)
    attach_client(home, client.settings, GATEWAY, environment)
    assert f"address = {GATEWAY}/scratchpad/v1\n" in path.read_text()
    found = Routes(read_custom_upstreams(home)).find("/scratchpad/v1/chat/completions")
    assert found is not None
    own = "mine.example" if before and "mine" in before else "api.scratchpad.example"
    assert found.url == f"https://{own}/v1/chat/completions"
    assert found.route.provider == "openai"

    detach_client(home, client.settings, environment)
    assert (path.read_text() if path.exists() else None) == before


def test_what_the_user_changed_since_stays_when_it_is_detached(
    client: Client, environment: Mapping[str, str], home: Home
) -> None:
    assert client.settings is not None
    path = client.settings.path(environment)
    path.write_text("address = https://mine.example/v1\n")
    attach_client(home, client.settings, GATEWAY, environment)
    with path.open("a") as file:
        file.write("colour = red\n")

    detach_client(home, client.settings, environment)

    assert path.read_text() == "address = https://mine.example/v1\ncolour = red\n"


@pytest.mark.parametrize("purpose", ["turn", "title"])
def test_its_session_and_purpose_are_read_from_its_own_headers(client: Client, purpose: str) -> None:
    headers = {"X-Scratchpad-Session": "groceries-and-other-things", "X-Scratchpad-Purpose": purpose}
    sent = redact_headers({**headers, "User-Agent": "scratchpad/1.2"}, senders.list_recorded_headers())
    assert sent["x-scratchpad-session"] == "groceries-and-other-things"
    exchange = exchange_samples.build_exchange(
        "/v1/chat/completions", ASKED, ANSWER, request_headers={**sent, "x-scratchpad-purpose": purpose}
    )

    found = project_exchange(exchange, ConversationCache())

    assert (found.session_id, found.client_name, found.kind) == ("groceries-and-other-things", "scratchpad", purpose)
    assert [row["content_text"] for row in found.rows] == (["buy milk", "noted"] if purpose == "turn" else [])
    assert {(row["client_name"], row["client_version"]) for row in found.rows} <= {("scratchpad", "1.2")}


@pytest.mark.parametrize("name", ["absent", "raising", "untyped"])
def test_one_that_is_broken_neither_stops_nor_hides_the_requests_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path, "hyp-broken", f"[hypaware.clients]\n{name} = broken_clients:{name}\n", "broken_clients", BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_clients()
    try:
        assert name in {each.name for each in plugins.load_declarations(plugins.CLIENTS, Client)}
        found = Routes([]).find("/claude/v1/messages")
        assert found is not None
        assert found.url == "https://api.anthropic.com/v1/messages"
        asked = {"model": "m", "messages": [{"role": "user", "content": "who am I?"}]}
        exchange = exchange_samples.build_exchange("/v1/messages", asked, {"role": "assistant", "content": []})
        rows = project_exchange(exchange, ConversationCache()).rows
        assert [row["content_text"] for row in rows] == ["who am I?"]
        assert mcp_settings().keys() == {"claude", "codex"}
    finally:
        forget_clients()
