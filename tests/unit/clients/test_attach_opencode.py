"""OpenCode's config: an address at the gateway for each provider, and every other byte as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import PreviousUpstream, attach_client, detach_client
from hypaware.clients.opencode.attach import OpenCodeSettings
from hypaware.clients.settings_file import SettingsRefused
from hypaware.gateway.routes import Routes, read_custom_upstreams
from hypaware.home import Home

GATEWAY = "http://127.0.0.1:18521"
OPENCODE = OpenCodeSettings()
MINE = """\
{
   "$schema": "https://opencode.ai/config.json",
   "provider": {
      "mine": { "npm": "sdk", "options": {"apiKey": "secret", "baseURL": "https://llm.example/api/v1/"} }
   },
   "theme": "dark"
}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".config/opencode").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def log_in(environment: dict[str, str], **kinds: str) -> None:
    path = Path(environment["HOME"]) / ".local/share/opencode/auth.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: {"type": kind, "key": "very-secret"} for name, kind in kinds.items()}))


def addresses(text: str) -> dict[str, Any]:
    return {name: each["options"]["baseURL"] for name, each in json.loads(text)["provider"].items()}


def test_each_provider_gets_a_prefix_of_its_own_that_leads_to_its_address(
    home: Home, environment: dict[str, str]
) -> None:
    log_in(environment, anthropic="api", openai="api")
    path = OPENCODE.path(environment)
    path.write_text(MINE)

    done = attach_client(home, OPENCODE, GATEWAY, environment)

    assert done.base_url == f"{GATEWAY}/opencode"
    assert addresses(path.read_text()) == {
        "mine": f"{GATEWAY}/opencode/mine/api/v1",
        "anthropic": f"{GATEWAY}/opencode/anthropic/v1",
        "openai": f"{GATEWAY}/opencode/openai/v1",
    }
    routes = Routes(read_custom_upstreams(home))
    for target, url, provider in (
        ("mine/api/v1/chat/completions", "https://llm.example/api/v1/chat/completions", "mine"),
        ("anthropic/v1/messages", "https://api.anthropic.com/v1/messages", "anthropic"),
        ("openai/v1/responses?x=1", "https://api.openai.com/v1/responses?x=1", "openai"),
    ):
        match = routes.find(f"/opencode/{target}")
        assert match is not None
        assert (match.url, match.route.provider, match.route.client) == (url, provider, "opencode")
    # No key is sent to an address that the client did not have.
    assert routes.find("/opencode/other/v1/messages") is None
    record = attach.record_path(home, "opencode").read_text()
    assert "secret" not in record
    assert not attach_client(home, OPENCODE, GATEWAY, environment).changed

    detach_client(home, OPENCODE, environment)
    assert path.read_text() == MINE
    # Open sessions keep the gateway's address.
    assert Routes(read_custom_upstreams(home)).find("/opencode/mine/api/v1/models") is not None


def test_a_config_that_attach_created_is_removed(home: Home, environment: dict[str, str]) -> None:
    path = OPENCODE.path(environment)
    assert path.name == "opencode.jsonc"
    done = attach_client(home, OPENCODE, GATEWAY, {**environment, "ANTHROPIC_API_KEY": "k"})
    assert done.upstream == "https://api.anthropic.com"
    assert addresses(path.read_text()) == {"anthropic": f"{GATEWAY}/opencode/anthropic/v1"}
    detach_client(home, OPENCODE, environment)
    assert not path.exists()


def test_what_the_user_changed_since_stays(home: Home, environment: dict[str, str]) -> None:
    path = OPENCODE.path(environment)
    path.write_text(MINE)
    attach_client(home, OPENCODE, GATEWAY, {**environment, "OPENAI_API_KEY": "k"})
    changed = json.loads(path.read_text())
    changed["provider"]["openai"]["models"] = {"gpt-5": {}}
    changed["provider"]["new"] = {"options": {"baseURL": "https://new.example/v1"}}
    path.write_text(json.dumps(changed))

    attach_client(home, OPENCODE, "http://127.0.0.1:9000", {**environment, "OPENAI_API_KEY": "k"})
    assert addresses(path.read_text()) == {
        "mine": "http://127.0.0.1:9000/opencode/mine/api/v1",
        "openai": "http://127.0.0.1:9000/opencode/openai/v1",
        "new": "http://127.0.0.1:9000/opencode/new/v1",
    }
    detach_client(home, OPENCODE, environment)

    left = json.loads(path.read_text())
    assert left["provider"].pop("openai") == {"models": {"gpt-5": {}}}
    assert left["provider"].pop("new") == {"options": {"baseURL": "https://new.example/v1"}}
    assert left == json.loads(MINE)


def test_without_a_record_only_addresses_that_can_only_be_ours_are_removed() -> None:
    ours = {"provider": {"anthropic": {"options": {"baseURL": f"{GATEWAY}/opencode/anthropic/v1"}}}, "theme": "dark"}
    assert json.loads(OPENCODE.detach(json.dumps(ours), None)) == {"theme": "dark"}
    assert OPENCODE.detach(MINE, None) == MINE


def test_what_is_not_recorded_live_is_said(environment: dict[str, str]) -> None:
    log_in(environment, openai="oauth", openrouter="api")
    text = json.dumps(
        {"provider": {"a": {"options": {"baseURL": "{env:A}"}}, "b": {"options": {"baseURL": "http://b/v1"}}}}
    )
    edit = OPENCODE.attach(text, GATEWAY, environment)
    assert edit.upstreams == (PreviousUpstream("/opencode/b", "http://b", "b"),)
    assert [note.partition(":")[0] for note in edit.notes] == [
        "the baseURL of a is not a plain address",
        "you are logged in to openai with an account, which chooses its own address",
        "only OpenCode knows the address of openrouter",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"theme": "dark"}', '{"provider": {"other": {}}}'],
)
def test_without_a_provider_whose_address_is_known_it_is_refused(text: str, environment: dict[str, str]) -> None:
    with pytest.raises(SettingsRefused, match="opencode auth login"):
        OPENCODE.attach(text, GATEWAY, environment)


@pytest.mark.parametrize(
    "text",
    [
        '// mine\n{"provider": {"mine": {"options": {"baseURL": "https://a.example"}}}}',
        '{"provider": []}',
        '{"provider": {"a": 1}}',
        '{"provider": {"a": {"options": 1}}}',
        '{"provider": {}, "provider": {}}',
        '{"provider": {"a": {"options": {"baseURL": "http://a", "baseURL": "http://b"}}}}',
    ],
)
def test_a_config_that_cannot_be_edited_is_refused(text: str, environment: dict[str, str]) -> None:
    with pytest.raises(SettingsRefused, match="cannot edit OpenCode's config"):
        OPENCODE.attach(text, GATEWAY, environment)


def test_a_proxy_that_would_get_the_requests_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsRefused, match=r"NO_PROXY=127\.0\.0\.1"):
        OPENCODE.attach(MINE, GATEWAY, {**environment, "HTTP_PROXY": "http://proxy.example:3128"})
    exempt = {**environment, "HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": "127.0.0.1"}
    assert OPENCODE.attach(MINE, GATEWAY, exempt).splices


NAMES = st.text(st.sampled_from("ab./ %é"), min_size=1, max_size=4)
PATHS = st.sampled_from(["", "/", "/v1", "/v1/", "/zen/v1"])


@given(
    providers=st.dictionaries(NAMES, PATHS, min_size=1, max_size=3),
    rest=st.dictionaries(NAMES, st.sampled_from([1, "x", [], {"a": {}}]), max_size=2),
    indent=st.sampled_from([None, 1, 4]),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_config_comes_back_byte_for_byte_and_every_address_is_reached(
    providers: dict[str, str], rest: dict[str, Any], indent: int | None, line_end: str
) -> None:
    found = {
        name: {"options": {"baseURL": f"https://u{n}.example{path}"}}
        for n, (name, path) in enumerate(providers.items())
    }
    text = json.dumps({**rest, "provider": found}, indent=indent).replace("\n", line_end)
    edit = OPENCODE.attach(text, GATEWAY, {"HOME": "/nonexistent"})
    new = settings_file.apply_splices(text, edit.splices)
    assert settings_file.undo_splices(new, edit.splices) == text
    assert OPENCODE.base_url(new) == edit.base_url
    again = OPENCODE.attach(new, GATEWAY, {"HOME": "/nonexistent"})
    assert (again.splices, again.upstreams) == ((), ())
    before, after = json.loads(text), json.loads(new)
    for name in found:
        url = after["provider"][name]["options"].pop("baseURL")
        old = before["provider"][name]["options"].pop("baseURL")
        (upstream,) = [each for each in edit.upstreams if each.provider == name]
        assert url.startswith(GATEWAY + upstream.path_prefix)
        assert url.replace(GATEWAY + upstream.path_prefix, upstream.base_url, 1) == old.rstrip("/")
    assert before == after
