from __future__ import annotations

import pytest

from hypaware.clients.claude.attach import CLAUDE_BASE
from hypaware.clients.codex.attach import CODEX_BASE, CODEX_CHATGPT_BASE
from hypaware.config import UpstreamConfig
from hypaware.gateway.routes import Route, Routes


def resolve(found: Routes, target: str) -> tuple[str, str | None, str] | None:
    destination = found.find(target)
    if destination is None:
        return None
    return destination.url, destination.route.client, destination.route.provider


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/claude/v1/messages?beta=true", ("https://api.anthropic.com/v1/messages?beta=true", "claude", "anthropic")),
        ("/claude/v1/models", ("https://api.anthropic.com/v1/models", "claude", "anthropic")),
        ("/claude/anything", ("https://api.anthropic.com/anything", "claude", "anthropic")),
        ("/claude", ("https://api.anthropic.com/", "claude", "anthropic")),
        ("/codex/v1/responses", ("https://api.openai.com/v1/responses", "codex", "openai")),
        ("/codex/v1/models?x=1", ("https://api.openai.com/v1/models?x=1", "codex", "openai")),
        ("/codex/chatgpt/codex/responses", ("https://chatgpt.com/backend-api/codex/responses", "codex", "openai")),
        ("/codex/backend-api/codex/responses", ("https://chatgpt.com/backend-api/codex/responses", "codex", "openai")),
        ("/v1/messages/count_tokens", ("https://api.anthropic.com/v1/messages/count_tokens", "claude", "anthropic")),
        ("/api/hello", ("https://api.anthropic.com/api/hello", "claude", "anthropic")),
        ("/v1/responses", ("https://api.openai.com/v1/responses", "codex", "openai")),
        ("/v1/chat/completions", ("https://api.openai.com/v1/chat/completions", "codex", "openai")),
        ("/backend-api/codex/responses", ("https://chatgpt.com/backend-api/codex/responses", "codex", "openai")),
        ("/v10/messages", None),
        ("/claudette/v1", None),
        ("/", None),
    ],
)
def test_both_clients_share_one_address(target: str, expected: tuple[str, str, str] | None) -> None:
    assert resolve(Routes([]), target) == expected


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        (CLAUDE_BASE, "/v1/messages", "https://api.anthropic.com/v1/messages"),
        (CODEX_BASE, "/responses", "https://api.openai.com/v1/responses"),
        (CODEX_CHATGPT_BASE, "/responses", "https://chatgpt.com/backend-api/codex/responses"),
    ],
)
def test_the_base_urls_of_attach_reach_the_clients_own_providers(base: str, path: str, url: str) -> None:
    found = Routes([]).find(base + path)

    assert found is not None
    assert found.url == url


def test_configured_upstreams_come_first_and_never_see_the_mark() -> None:
    found = Routes([UpstreamConfig(name="corp", base_url="https://corp.example/llm/", provider="anthropic")])

    assert resolve(found, "/claude/v1/messages") == ("https://corp.example/llm/v1/messages", "claude", "anthropic")
    assert resolve(found, "/v1/responses") == ("https://corp.example/llm/v1/responses", None, "anthropic")


def test_the_longest_configured_prefix_wins_before_the_presets() -> None:
    found = Routes(
        [
            Route("short", "/v1", "https://short.example", "a"),
            Route("long", "/v1/messages", "https://long.example", "b"),
            Route("stripped", "/local/", "http://127.0.0.1:4000/base", "c", strip_prefix=True),
        ]
    )

    assert resolve(found, "/v1/messages?x") == ("https://long.example/v1/messages?x", None, "b")
    assert resolve(found, "/v1/models") == ("https://short.example/v1/models", None, "a")
    assert resolve(found, "/local/v1/x") == ("http://127.0.0.1:4000/base/v1/x", None, "c")
    assert resolve(found, "/local") == ("http://127.0.0.1:4000/base/", None, "c")
    assert resolve(found, "/api/hello") == ("https://api.anthropic.com/api/hello", "claude", "anthropic")


def test_a_configured_upstream_can_claim_a_marked_path() -> None:
    found = Routes([Route("mine", "/codex/v1", "https://mine.example", "x", strip_prefix=True)])

    assert resolve(found, "/codex/v1/responses") == ("https://mine.example/responses", "codex", "x")
    assert resolve(found, "/codex/other") == ("https://api.openai.com/other", "codex", "openai")


def test_a_client_that_is_not_recorded_is_still_served() -> None:
    found = Routes([], recorded=("codex",))

    marked, plain = found.find("/claude/v1/messages"), found.find("/v1/models")

    assert marked is not None
    assert not marked.route.recorded
    assert plain is not None
    assert (plain.route.client, plain.route.recorded) == ("codex", True)


def test_the_recorded_path_is_the_providers_own() -> None:
    found = Routes([Route("s", "/corp/x", "https://e.example/deep", "p", strip_prefix=True)])

    destinations = [found.find(target) for target in ("/corp/x/v1/messages?a=b", "/claude/v1/messages?a=b")]

    assert [destination and destination.path for destination in destinations] == ["/v1/messages?a=b"] * 2
