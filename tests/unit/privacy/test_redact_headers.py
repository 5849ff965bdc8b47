"""Listed headers and parameters are recorded; of all others at most four characters are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.gateway.senders import list_recorded_headers
from hypaware.privacy.redact import MASK, redact_headers, redact_query

SECRET = "Zq8vN3kLw0PxT7aYbR2c"
# fmt: off
LISTED = [
    "Authorization", "Proxy-Authorization", "X-Api-Key", "anthropic-api-key", "x-goog-api-key", "api-key",
    "Cookie", "Set-Cookie", "ChatGPT-Account-ID", "x-amz-security-token", "my-SECRET-header", "X-Access-Token",
]
# fmt: on
UNUSUAL = ["X-Forwarded-User", "x-my-company", "anthropic-organization-id", "openai-organization", "x-csrf", "referer"]


@pytest.mark.hazard(59)
@pytest.mark.parametrize("name", [*LISTED, *UNUSUAL])
def test_a_masked_header_keeps_at_most_four_characters(name: str) -> None:
    assert redact_headers([(name, SECRET)]) == {name.lower(): MASK + SECRET[-4:]}
    assert redact_headers([(name, SECRET[:17])]) == {name.lower(): MASK + SECRET[13:17]}
    assert redact_headers([(name, SECRET[:16])]) == {name.lower(): MASK}
    assert redact_headers([(name, "k1")]) == {name.lower(): MASK}
    assert redact_headers([(name, "")]) == {name.lower(): MASK}


def test_headers_that_identify_session_and_response_are_recorded_unchanged() -> None:
    headers = {
        "X-Claude-Code-Session-Id": "b4523ce0-57e2-4c33-a3cf-97f41b6e597e",
        "x-claude-code-agent-id": "a442ed57fc76e8f89",
        "Session-Id": "01a1de11-19ea-7781-b754-2de057187d45",
        "x-codex-turn-metadata": '{"turn_id":"t","session_id":"s"}',
        "Content-Type": "text/event-stream; charset=utf-8",
        "request-id": "req_011CSHoEeqs5C35K2UUqR7Fy",
        "x-stainless-retry-count": "0",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }
    kept = redact_headers(headers, list_recorded_headers())
    assert kept == {name.lower(): value for name, value in headers.items()}


@pytest.mark.hazard(59)
def test_a_key_in_a_recorded_header_is_redacted() -> None:
    key = "sk-" + "ant-api03-" + SECRET * 4
    assert redact_headers([("User-Agent", f"tool/1 {key}")])["user-agent"] == f"tool/1 {MASK}"


def test_repeated_headers_are_joined_and_each_value_is_masked() -> None:
    assert redact_headers(
        [("Set-Cookie", f"a={SECRET}"), ("set-cookie", "b=1"), ("Via", "1.1 a"), ("via", "1.1 b")]
    ) == {
        "set-cookie": f"{MASK}{SECRET[-4:]}, {MASK}",
        "via": "1.1 a, 1.1 b",
    }


@pytest.mark.hazard(61)
def test_a_header_with_an_invalid_name_is_omitted() -> None:
    assert redact_headers([(SECRET * 5, "x"), ("a b", SECRET), ("../x\x1b[2J", SECRET), ("", SECRET)]) == {}


@pytest.mark.hazard(59)
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/messages?beta=true", ("/v1/messages", "beta=true")),
        ("/v1/messages", ("/v1/messages", "")),
        ("/v1/x?", ("/v1/x", "")),
        (f"/v1/x?key={SECRET}&alt=sse", ("/v1/x", f"key={MASK}{SECRET[-4:]}&alt=sse")),
        ("/v1/x?key=short", ("/v1/x", f"key={MASK}")),
        (f"/v1/x?beta={SECRET}", ("/v1/x", f"beta={MASK}{SECRET[-4:]}")),
        (f"/v1/x?{SECRET}", ("/v1/x", MASK + SECRET[-4:])),
        (f"/v1/x?{SECRET}=1", ("/v1/x", f"{MASK}={MASK}")),
        (f"/v1/x?a=1;token={SECRET}#f{SECRET}", ("/v1/x", f"a={MASK}&token={MASK}{SECRET[-4:]}")),
        (f"/v1/x?a={SECRET}?b={SECRET}", ("/v1/x", f"a={MASK}{SECRET[-4:]}")),
        ("/v1/x?a=b=c==", ("/v1/x", f"a={MASK}")),
    ],
)
def test_query_values_are_masked_unless_allowed(target: str, expected: tuple[str, str]) -> None:
    assert redact_query(target) == expected


@pytest.mark.hazard(59)
def test_a_key_in_the_path_is_redacted() -> None:
    path, _ = redact_query("/bot/AI" + "za" + "b" * 35 + "/send")
    assert path == f"/bot/{MASK}/send"


@given(st.text(), st.text(min_size=17, alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E)))
@pytest.mark.hazard(59)
def test_no_query_reveals_more_than_four_characters_of_a_value(around: str, value: str) -> None:
    cut = value.translate({ord(sign): "x" for sign in "&;#?="})
    _, query = redact_query(f"/p?{around.translate({ord('#'): None})}&k={cut}")
    assert query.split("&")[-1] == f"k={MASK}{cut[-4:]}"
