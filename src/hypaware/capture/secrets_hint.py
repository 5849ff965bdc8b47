"""One expression that is found in every text in which a rule would find a secret, and in few others.

For engines without memory of what they passed (RE2, which Arrow has): millions of texts are asked about at once, and
only those with a hint are given to the rules. It is made of the rules themselves, made looser: no look to either side,
no upper bound, at most four of what a rule wants many of. So it can say yes too often, and never no too often.
"""

from __future__ import annotations

import re

from hypaware.capture import secrets_rules as rules

# The more a machine without memory has to count, the more states it has.
_MOST_COUNTED = 4
_LOOK_ASIDE = re.compile(r"\(\?<?[!=][^)]*\)")
_COUNT = re.compile(r"\{(\d+)(?:,\d*)?\}\+?")
_POSSESSIVE = re.compile(r"(?<=[*+?])\+")


def _looser(expression: str) -> str:
    expression = _LOOK_ASIDE.sub("", expression)
    expression = _COUNT.sub(lambda count: f"{{{min(int(count[1]), _MOST_COUNTED)},}}", expression)
    return _POSSESSIVE.sub("", expression)


def _any_of(words: tuple[bytes, ...]) -> str:
    return "|".join(word.decode() for word in words)


_NAMES = (
    f"(?i:{_any_of(rules.PASSWORD_NAMES)}|{_any_of(rules.SECRET_NAMES)}|(?:{_any_of(rules.KEY_NAMES)})[_.-]*key)|_KEY"
)
_SIGN = r"[\\\"'`\]]*[ \t]*[=:]"

HINT = "|".join(
    (
        *dict.fromkeys(_looser(rule.expression) for rule in rules.TOKENS),
        r"(?i:bearer)[ \t%\\]",
        r"(?i:basic)(?:[ \t]|%20|\\+t)+[A-Za-z0-9+/]{4,}",
        f"(?i:{_any_of(rules.HEADERS)}){_SIGN}",
        r"\dQ~",
        "-----BEGIN ",
        _looser(rules.URL.pattern.decode()),
        f"(?:{_NAMES}){_SIGN}",
    )
)
