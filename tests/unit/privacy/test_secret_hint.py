"""The hint matches every text in which the rules find a secret."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.privacy import secret_rules
from hypaware.privacy.secret_rules import SECRET_HINT
from tests.support.secrets import redact_json_text, redact_text

EXPRESSIONS = {rule.expression: rule.kind for rule in secret_rules.TOKEN_RULES}
NAMES = [
    "DB_PASSWORD",
    "passwd",
    "ssh_passphrase",
    "pwd",
    "client_secret",
    "Token",
    "x-api-key",
    "SIGNING.key",
    "A_KEY",
]
PIECES = [
    *NAMES, "=", ": ", ":=", " => ", '"', "'", '\\"', "`", "]", " ", "\n", "x7Kq29vLm3", "hunter2!x", "AbCd1234EfGh",
    "Authorization: Basic ", "dXNlcjpwYXNzd29yZA==", "bearer ", "BEARER%20",
    "AUTHORIZATION", "BASIC\t", "Set-Cookie", "COOKIE", "sid=", "0123456789abcdef", ";",
    "https://app:", "p4ss%2Fword", "@db.example/",
    "-----BEGIN RSA PRIVATE KEY-----", "MIIBVgIBADAN", "ab18Q~" + "a1B2" * 9, "gh" + "p_" + "a1B2" * 9,
    "[jwt:01234567]", "--", "-", "<", ">", "</key>", "<string>", '"name": "', '", "value": "', "name: ", "value: ",
    "login ", "machine ", " is ", "(", "'", "sig=", "?", "&", "Signature=", "IDENTIFIED BY ", "WITH PASSWORD ", "auth",
    "curl ", " -u ", "deploy:", "mysql ", " -p", "sshpass ", "docker login ", " -a ", "redis-cli", "\\\n",
    "dbPass", "pass:",
]  # fmt: skip


def matches_hint(text: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([text.encode()]), SECRET_HINT)[0].as_py())


def simplify(expression: str) -> str:
    """Return the expression without possessive quantifiers and negative look-around."""
    return re.sub(r"\(\?<?!.*?\)", "", re.sub(r"(?<=[*+?}])\+", "", expression))


@pytest.mark.hazard(59)
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: EXPRESSIONS[expression])
def test_every_kind_of_key_matches_the_hint(expression: str) -> None:
    alphabet = st.characters(codec="ascii")
    keys = st.from_regex(simplify(expression), fullmatch=True, alphabet=alphabet).filter(
        lambda key: redact_text(key)[1]
    )

    @settings(max_examples=5)
    @given(keys)
    def check(key: str) -> None:
        assert matches_hint(f"über <{key}> ☃")

    check()


@pytest.mark.hazard(59)
@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=9).map("".join))
def test_every_text_with_a_secret_matches_the_hint(text: str) -> None:
    for redact in (redact_text, redact_json_text):
        if redact(text)[1]:
            assert matches_hint(text)


@pytest.mark.parametrize(
    "text",
    [
        "The key to it is a token of trust, and no secret.",
        "b4523ce0-57e2-4c33-a3cf-97f41b6e597e",
        "req_011CXabcdefghijklmnopqrs",
        "src/basic_functionality/password_reset.py:12: import tokens",
        '{"input_tokens": 123456789, "max_tokens": 64000, "key_count": 3}',
    ],
)
def test_ordinary_text_does_not_match_the_hint(text: str) -> None:
    assert not matches_hint(text)
