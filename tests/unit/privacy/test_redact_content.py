"""Secrets in content are replaced by stable markers, and all other text stays unchanged."""

from __future__ import annotations

import json
import lzma
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.config.values import SECRET_RULES
from hypaware.gateway.exchange import SseEvent
from hypaware.model import canonical
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support import exchange_samples
from tests.support.secrets import REDACTION, redact_exchange, redact_json, redact_json_text, redact_row, redact_text
from tests.support.strategies import json_values

FIXTURES = Path(__file__).parents[2] / "fixtures"


def random_text(length: int, alphabet: str = string.ascii_letters + string.digits, seed: int = 7) -> str:
    """Pseudo-random text, the same each time."""
    found = []
    for at in range(length):
        seed = (seed * 1103515245 + 12345 + at) % 2**31
        found.append(alphabet[(seed >> 16) % len(alphabet)])
    return "".join(found)


HEX = "0123456789abcdef"
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{random_text(64)}\n{random_text(40)}+/==\n-----END RSA PRIVATE KEY-----"
# Assembled here, so that no secret scanner reports this file.
PLANTED = {
    "anthropic-key": "sk-" + "ant-api03-" + random_text(93) + "AA",
    "openai-key": "sk-" + "proj-" + random_text(70) + "T3BlbkFJ" + random_text(70),
    "openrouter-key": "sk-" + "or-v1-" + random_text(64, HEX),
    "aws-key-id": "AK" + "IA" + random_text(16, BASE32),
    "gcp-key": "AI" + "za" + random_text(35),
    "gcp-oauth-token": "ya" + "29." + random_text(60),
    "github-token": "gh" + "p_" + random_text(36),
    "gitlab-token": "gl" + "pat-" + random_text(20),
    "slack-token": "xo"
    + "xb-"
    + random_text(12, string.digits)
    + "-"
    + random_text(12, string.digits)
    + "-"
    + random_text(24),
    "slack-webhook": "hooks.slack" + ".com/services/T" + random_text(8) + "/B" + random_text(8) + "/" + random_text(24),
    "stripe-key": "sk" + "_live_" + random_text(24),
    "npm-token": "np" + "m_" + random_text(36),
    "pypi-token": "py" + "pi-AgEIcHlwaS5vcmc" + random_text(80),
    "huggingface-token": "h" + "f_" + random_text(34, string.ascii_letters),
    "sendgrid-key": "S" + "G." + random_text(22) + "." + random_text(43),
    "vault-token": "hv" + "s." + random_text(90),
    "digitalocean-token": "do" + "p_v1_" + random_text(64, HEX),
    "azure-client-secret": random_text(3) + "8" + "Q~" + random_text(34),
    "jwt": "ey" + "J" + random_text(33) + ".ey" + "J" + random_text(60) + "." + random_text(43),
    "private-key": PEM,
}
AROUND = ["{}", "key: {} and more", '"{}"', "({})", "https://host/?x={}&y=1", "a={}\nb=2", "<{}>", "`{}`", "über {} ☃"]
ASSIGNED = [
    ("DB_PASSWORD={}", "correct-horse"),
    ("export GH_TOKEN='{}'", "abcdefgh"),
    ('SECRET_KEY="{}"', "a b".replace(" ", "-") + "c9!x"),
    ("AWS_SECRET_ACCESS_KEY={}", random_text(40)),
    ("aws_secret_access_key = {}", random_text(40)),
    ('{{"password": "{}"}}', "hunter2!x"),
    ('{{\\"api_key\\": \\"{}\\"}}', random_text(20)),
    ("client_secret: '{}'", random_text(24)),
    ("x-api-key: {}", random_text(32)),
    ("AccountKey={};EndpointSuffix=x", random_text(60) + "=="),
    ("ssh_passphrase = '{}'", "open-sesame-77"),
    ("curl -H 'Authorization: Bearer {}'", random_text(18)),
    ("Authorization: Basic {}", "dXNlcjpwYXNzd29yZA=="),
    ("postgres://app:{}@db.example:5432/app", "p4ss%2Fword"),
    ("https://oauth2:{}@example.com/x.git", random_text(12)),
]


@pytest.mark.hazard(59)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", PLANTED)
def test_a_secret_is_replaced_by_its_kind_and_a_short_hash(kind: str, around: str) -> None:
    secret = PLANTED[kind]
    redacted, counts = redact_text(around.format(secret))
    assert secret not in redacted
    assert not any(part in redacted for part in secret.split("\n") if len(part) > 12)
    assert counts.total() == 1
    assert redacted.count("[") == redacted.count("]") == 1
    if around == "{}":
        assert counts == {kind: 1}
        assert len(redacted) == len(f"[{kind}:0123456789ab]")


@pytest.mark.hazard(59)
@pytest.mark.parametrize(("around", "secret"), ASSIGNED)
def test_a_value_assigned_to_the_name_of_a_secret_is_redacted(around: str, secret: str) -> None:
    for text in (around.format(secret), f"PATH=/usr/bin\n{around.format(secret)}\nHOME=/home/dev\n"):
        redacted, counts = redact_text(text)
        assert secret not in redacted
        assert counts.total() == 1
        assert redacted.replace(redacted[redacted.index("[") : redacted.index("]") + 1], secret) == text


BASIC = "dXNlcjpwYXNzd29yZA=="
HEADERS = [
    ("Authorization: Basic {}", BASIC),
    ("proxy-authorization: basic {}", BASIC),
    ("Authorization: Basic \t{}", BASIC),
    ("Authorization: Bearer {}", random_text(18)),
    ("Authorization:bearer  {}", random_text(18)),
    ("authorization=Bearer%20{}", random_text(18)),
    ("Proxy-Authorization: Token {}", random_text(24, HEX)),
    ("Authorization: {}", random_text(24)),
    ("X-Api-Key: {}", random_text(18)),
    ("X-Auth-Token: {}", random_text(18)),
    ("Cookie: theme=dark; session={}; lang=en", random_text(26)),
    ("Set-Cookie: sid={}; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT; HttpOnly", random_text(26)),
]


@pytest.mark.hazard(59)
@pytest.mark.parametrize("written", [str, str.upper, str.lower, str.title], ids=["as sent", "upper", "lower", "title"])
@pytest.mark.parametrize(("header", "secret"), HEADERS)
def test_a_quoted_header_is_redacted_in_any_case_and_quoting(header: str, secret: str, written: Any) -> None:
    header = written(header.replace("{}", "\0")).replace("\0", secret)
    name, _, value = header.partition(":")
    texts = [header, f"> {header}\r\n> accept: */*", f"curl -H '{header}' https://host/", json.dumps({"said": header})]
    if value:
        texts += [json.dumps({name: value.strip()}), str({name: value.strip()})]
    for text in (*texts, *map(json.dumps, texts)):
        redacted, counts = redact_text(text)
        assert secret not in redacted, text
        assert counts.total() == 1
        assert redacted.replace(redacted[redacted.index("[") : redacted.index("]") + 1], secret) == text
    if value:
        row = canonical.dumps({"headers": {name: value.strip()}})
        redacted, counts = redact_json_text(row)
        assert (secret in redacted, counts.total()) == (False, 1)
        assert redact_json(canonical.loads(row)) == (canonical.loads(redacted), counts)
        assert redact_json_text(redacted) == (redacted, {})


@pytest.mark.parametrize(
    "text",
    [
        "PASSWORD=$DB_PASSWORD",
        "BASIC PROGRAMMING was taught; Basic knowledge, basic functionality and BASIC INTERPRETERS.",
        "BEARER BONDS, bearer authentication and Bearer <token>",
        "Authorization: see section-4 of the authorization-framework-draft",
        "AUTHORIZATION: required, authorization=true",
        "the cookie: path=/usr/share/doc/python3.11/html4; theme=dark; max-age=31536000",
        "Set-Cookie: theme=solarized-dark-high-contrast; Path=/; SameSite=Lax",
        "Cookie: session=<your-session-id-0123456789>",
        "cookies = {'a': 'b'}; document.cookie.split(';')",
        "TOKEN=${TOKEN:-none}",
        "api_key = os.environ['API_KEY']",
        "password: string",
        'password = "password"',
        "const token = await getToken()",
        '"input_tokens": 123456789, "max_tokens": 64000',
        "PWD=/srv/project\nOLDPWD=/srv",
        "the secret: nobody knows it",
        "Authorization: Basic authentication is used here",
        "Bearer authentication",
        "https://example.com/@scope/package:1.0",
        "git@example.com:team/repo.git",
        "task-1234567890-abcdefghijklmnop",
        "b4523ce0-57e2-4c33-a3cf-97f41b6e597e",
        "aac7ade22329f5808f5ab0f9e04e7be02564bd93d3aa",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "token_file = '/home/dev/.config/token'",
        'key = "value-with-12-digits-34"',
    ],
)
def test_text_that_is_not_a_secret_stays(text: str) -> None:
    assert redact_text(text) == (text, {})


def test_the_same_secret_has_the_same_marker_everywhere() -> None:
    key = PLANTED["github-token"]
    first, _ = redact_text(f"a {key} b {key}")
    second, _ = redact_json({"deep": [{"er": f"({key})"}]})
    marker = first.split()[1]
    assert first == f"a {marker} b {marker}"
    assert second == {"deep": [{"er": f"({marker})"}]}
    assert redact_text("gh" + "p_" + random_text(36, seed=8))[0] != marker


def test_a_rule_can_be_turned_off() -> None:
    text = f"{PLANTED['github-token']} {PLANTED['npm-token']}"
    redacted, counts = redact_text(text, redaction=replace(REDACTION, rules_off=frozenset(["github-token"])))
    assert counts == {"npm-token": 1}
    assert PLANTED["github-token"] in redacted
    assert redact_text(text, redaction=replace(REDACTION, rules_off=frozenset(SECRET_RULES))) == (text, {})


def test_a_truncated_private_key_is_redacted_to_its_end() -> None:
    cut = PEM.partition("-----END")[0]
    assert redact_text(f"{cut}# and then")[0].startswith("[private-key:")
    assert random_text(40) not in redact_text(f"{cut}# and then")[0]
    escaped = json.dumps(PEM)
    assert redact_text(escaped)[1] == {"private-key": 1}


secrets_in_text = st.lists(
    st.one_of(
        st.sampled_from(sorted(PLANTED.values())),
        st.sampled_from([around.format(secret) for around, secret in ASSIGNED]),
        st.text(max_size=12),
        st.sampled_from(
            ["=", ":", '"', "\\", "\n", " ", "password", "token=", "://u:", "@", "[jwt:01234567]", "[jwt:0123456789ab]"]
        ),
    ),
    max_size=8,
).map("".join)


@given(secrets_in_text)
def test_redaction_is_idempotent(text: str) -> None:
    once, _ = redact_text(text)
    assert redact_text(once) == (once, {})


@given(secrets_in_text, json_values)
def test_redacted_json_keeps_its_structure(text: str, value: Any) -> None:
    whole = canonical.dumps({"a": text, "password": text, "other": value}) if is_storable(text, value) else "{}"
    redacted, _ = redact_json_text(whole)
    assert canonical.dumps(canonical.loads(redacted)) == redacted
    assert redact_json_text(redacted) == (redacted, {})
    assert canonical.loads(redacted).keys() == canonical.loads(whole).keys()
    # As plain text too, for bodies that are stored unchanged.
    orjson.loads(redact_text(whole)[0])


def is_storable(*values: Any) -> bool:
    try:
        canonical.dumps(list(values))
    except ValueError:
        return False
    return True


@pytest.mark.hazard(59)
def test_no_column_of_a_delivered_row_contains_a_secret() -> None:
    key, jwt = PLANTED["anthropic-key"], PLANTED["jwt"]
    row = {
        "part_id": "m#0",
        "session_id": "s",
        "content_text": f"env: {key}\nDB_PASSWORD=hunter2-x",
        "system_text": PEM,
        "tool_args": canonical.dumps({"command": f"curl -H 'x: {jwt}'", "password": "hunter2-x"}),
        "attributes": {"claude": {"tool_use_result": {"stdout": key}}},
        "part_index": 0,
        "is_error": None,
    }
    redacted, counts = redact_row(AI_GATEWAY_MESSAGES, row)
    shown = json.dumps(redacted)
    assert not any(secret in shown for secret in (key, jwt, "hunter2-x", PEM.split("\n")[1]))
    assert counts == {"anthropic-key": 2, "password": 2, "private-key": 1, "jwt": 1}
    assert (redacted["part_id"], redacted["session_id"], redacted["part_index"]) == ("m#0", "s", 0)
    assert redact_row(AI_GATEWAY_MESSAGES, redacted) == (redacted, {})


@pytest.mark.hazard(68)
def test_streamed_text_that_is_json_is_redacted_like_its_transcript() -> None:
    """With another key order or spacing, they would not be recognized as the same part."""
    said = '{ "password": "hunter2!x",\n  "a": 1 }'
    chunks = [{"index": 0, "delta": {"type": "text_delta", "text": said[at : at + 6]}} for at in range(0, len(said), 6)]
    events = tuple(SseEvent("content_block_delta", chunk) for chunk in chunks)
    found, counts = redact_exchange(
        replace(exchange_samples.build_exchange("/v1/messages", {}, {}), events=events, response_text="events")
    )
    assert found.events is not None
    assert "".join(event.data["delta"]["text"] for event in found.events) == redact_text(said)[0]
    assert counts == {"password": 1}


@pytest.mark.hazard(59)
@pytest.mark.parametrize(
    "delta",
    [
        lambda said: {"tool_calls": [{"index": 0, "function": {"arguments": said}}]},
        lambda said: {"tool_calls": [{"index": 0, "custom": {"input": said}}]},
        lambda said: {"function_call": {"arguments": said}},
        lambda said: {"audio": {"transcript": said}},
    ],
    ids=["function", "custom", "function_call", "audio"],
)
def test_a_secret_split_by_a_chat_stream_is_found_in_every_field(delta: Any) -> None:
    key = PLANTED["github-token"]
    chunks = [{"choices": [{"index": 0, "delta": delta(said)}]} for said in (f"use {key[:9]}", key[9:])]
    events = tuple(SseEvent("message", chunk) for chunk in chunks)
    found, counts = redact_exchange(
        replace(exchange_samples.build_exchange("/v1/chat/completions", {}, {}), events=events, response_text="events")
    )
    assert counts == {"github-token": 1}
    assert not any(part in str(found.response_text) for part in (key[:9], key[9:]))


def test_no_secret_is_found_in_the_sample_transcripts() -> None:
    files = [path for path in FIXTURES.rglob("*") if path.suffix in (".jsonl", ".json", ".xz")]
    assert files
    for path in files:
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        for line in raw.decode("utf-8", "replace").splitlines():
            assert redact_text(line)[1] == {}, path


@pytest.mark.parametrize(
    "unit",
    ["a", "sk-", "ey" "J", "-ey" "J", "token=", 'token="', "TOKEN=a", "token=a1b2c3d4",
     "password: ", "://u:", "://a:b", "@", "Bearer ", "\\", "=",
     "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "[password:", "S" "G.aaaaaaaaaaaaaaaaaa.", "gh" "p_", "A3T",
     "Q~", "8Q~aaaaaaaa", "cookie:", "Cookie: a=b;", "cookie: ;", "AUTHORIZATION: ", "authorization: a1 ", "BASIC ",
     "Basic aaaaaaaa ", "bearer\\t", "Set-Cookie: sid=0123456789abcdef; ",
     "--token ", "--token a1b2c3d4 ", "<password>", "<password ", "<password>a1!", '"name":"password","value":',
     "curl -u ", "mysql -p", "mysql -pa1b2c3", " -u a:", "sig=", "sig=a1b2c3d4e5f6g7h8", "://a:b@", "://a:b/",
     "://a@", "password is ", "login a password ", "password(", "password=a)", "password=(a", "TOKEN=a;b&c,d)",
     "identified by '", "identified with ", 'auth":"', "example", "$x", "<x"],
)  # fmt: skip
def test_no_input_makes_the_scanner_slow(unit: str) -> None:
    """Twice the text takes about twice the time; a rule that backtracks would not finish."""
    for text in (unit * (400_000 // len(unit)), unit * (40_000 // len(unit)) + "\n" + "x" * 40_000):
        redacted, counts = redact_text(text)
        assert (redacted == text) is (not counts)


@pytest.mark.hazard(60)
@pytest.mark.parametrize("depth", [200, 300, 500, 1000, 5000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_secret_in_deeply_nested_json_is_found(depth: int, opening: str, closing: str) -> None:
    key = PLANTED["github-token"]
    text = opening * depth + f'"{key}"' + closing * depth
    redacted, counts = redact_json_text(text)
    assert (key in redacted, counts) == (False, {"github-token": 1})
    assert redacted == text.replace(key, redact_text(key)[0])
    body = f'{{"model": "m", "messages": {text}}}'
    exchange = exchange_samples.build_exchange("/v1/messages", {}, {})
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    found, counts = redact_exchange(replace(exchange, request=document, request_text=body))
    assert (key in str(found.request_text), counts) == (False, {"github-token": 1})
    events = (SseEvent("e", document), SseEvent("e", {"delta": f"use {key[:9]}"}), SseEvent("e", {"delta": key[9:]}))
    found, counts = redact_exchange(replace(exchange, events=events, response_text="events"))
    assert (key in str(found.response_text), counts["github-token"]) == (False, 1 + (document is not None))
