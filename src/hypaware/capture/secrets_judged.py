"""Heuristics for whether a value in the position of a secret looks like one."""

from __future__ import annotations

import re

from hypaware.capture import secrets_rules as rules

_PLACEHOLDER = re.compile(
    rb"(?i)\$|<|\{\{|%[({]|\*{3}|\.{3}|x{3,}|your[_-]|example|placeholder|change[_-]?me|redacted|none$|null$|nil$"
    rb"|undefined$|true$|false$|string$|str$|bytes$|required$|optional$|test$|secret$|token$|pass(?:word)?$|bearer$|basic$"
    rb"|(?:process\.env|os\.environ|os\.getenv|import\.meta|self\.|this\.|config\.|settings\.|env\.|args\.|options\.)"
    rb"|(?:~|\.{0,2})/(?:home|run|etc|tmp|usr|var|opt|users|private|root|mnt|srv|dev|proc|data|app|secrets?|library)\b"
    rb"|(?:https?|file)://"
)
_WORDS = re.compile(rb"[A-Za-z_]+(?:[._-][A-Za-z_]+)*")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z_]*(?:[0-9]{1,2})?(?:[._-][A-Za-z_]+[0-9]{0,2})*")


def is_placeholder(value: bytes) -> bool:
    return _PLACEHOLDER.match(value) is not None or len(set(value)) <= 2


def is_secret(value: bytes, kind: str, is_env: bool, is_quoted: bool) -> bool:
    if is_placeholder(value):
        return False
    is_password = kind == rules.PASSWORD
    if is_env:
        return len(value) >= 6 and (is_password or not value.isdigit())
    if len(value) < (6 if is_password else 8) or b" " in value or value.isdigit():
        return False
    if is_password and is_quoted:
        return _WORDS.fullmatch(value) is None
    return is_mixed(value) and _IDENTIFIER.fullmatch(value) is None


def is_mixed(value: bytes) -> bool:
    """Return whether the value has letters and at least two digits, as random values nearly always do."""
    digits = sum(48 <= byte <= 57 for byte in value)
    return digits >= 2 and any(65 <= byte <= 90 or 97 <= byte <= 122 for byte in value)
