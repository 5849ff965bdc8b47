"""A prefilter: one expression that matches every text in which a rule finds a secret, and few others.

It is made for RE2, the automaton engine in Arrow, which checks millions of texts at once; only texts that match are
given to the rules. It is derived from the rules by loosening them: no look-around, no upper bounds, at most four
repetitions where a rule requires many. It may therefore match too often, but never too rarely.
"""

from __future__ import annotations

import re

from hypaware.capture import secrets_rules as rules

# The more repetitions an automaton counts, the more states it needs.
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
