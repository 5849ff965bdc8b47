"""Judge a value that stands where a secret may stand: a secret, a placeholder, a word or program code."""

from __future__ import annotations

import re

from hypaware.privacy.secret_rules import ASSIGNED, PASSWORD

_PLACEHOLDER = re.compile(
    rb"(?i)\$[({]|\$+[A-Z_][\w.:]*+$|<[^<>]*+>|<[A-Z_-]*+$|\{\{|%[({]|%\w++%$|\*{3,}+\w{0,4}$|\.{3,}+\w{0,4}$|x{3,}+[x0-9_.*-]*+$"
    rb"|(?:your[_-]|example|placeholder|change[_-]?me|redacted)[A-Z_.-]*+[0-9]{0,4}$"
    rb"|(?:none|null|nil|undefined|true|false|string|str|bytes|required|optional|test|secret|token|pass(?:word)?|bearer|basic)$"
    rb"|(?:process\.env|os\.environ|os\.getenv|import\.meta|self\.|this\.|config\.|settings\.|env\.|args\.|options\.)"
    rb"[\w.]*+(?:!?$|[?|\[(;,:+])"
    rb"|(?:~|\.{0,2})/(?:home|run|etc|tmp|usr|var|opt|users|private|root|mnt|srv|dev|proc|data|app|secrets?|library)\b"
    rb"|(?:https?|file)://"
)
_WORDS = re.compile(rb"[A-Za-z_]+(?:[._-][A-Za-z_]+)*")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z_]*(?:[0-9]{1,2})?(?:[._-][A-Za-z_]+[0-9]{0,2})*")
_SPECIAL = re.compile(rb"[!@#$%^&*~?+]")


def is_secret(value: bytes, kind: str = ASSIGNED, is_certain: bool = False, *, is_quoted: bool = False) -> bool:
    """Return whether the value is a secret of this kind; `is_certain` means that nothing else can stand there."""
    if is_placeholder(value):
        return False
    is_password = kind == PASSWORD
    if is_certain:
        return len(value) >= 6 and (is_password or not value.isdigit())
    if len(value) < (6 if is_password else 8) or b" " in value or value.isdigit():
        return False
    if is_password and is_quoted:
        return _WORDS.fullmatch(value) is None
    if is_password and _SPECIAL.search(value) and _count_digits(value) and value.upper() != value.lower():
        return True
    return is_mixed(value) and _IDENTIFIER.fullmatch(value) is None


def is_placeholder(value: bytes) -> bool:
    return _PLACEHOLDER.match(value) is not None or len(set(value)) <= 2


def is_mixed(value: bytes) -> bool:
    """Return whether the value has letters and at least two digits, as random values nearly always do."""
    return _count_digits(value) >= 2 and any(65 <= byte <= 90 or 97 <= byte <= 122 for byte in value)


def _count_digits(value: bytes) -> int:
    return sum(48 <= byte <= 57 for byte in value)
