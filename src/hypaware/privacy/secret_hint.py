"""A prefilter that matches every text in which a rule finds a secret, and few others.

It is made for RE2, the automaton engine in Arrow, which checks millions of texts at once; only texts that match are
given to the rules. It is derived from the rules by loosening them: no look-around, no upper bounds, at most three
repetitions where a rule requires many. It may therefore match too often, but never too rarely.
"""

from __future__ import annotations

import re

from hypaware.privacy import secret_rules

# The more repetitions an automaton counts, the more states it needs.
_MAX_REPEATS = 3
_LOOK_AROUND = re.compile(r"\(\?<?[!=][^)]*\)")
_REPEATS = re.compile(r"\{(\d+)(?:,\d*)?\}\+?")
_POSSESSIVE = re.compile(r"(?<=[*+?])\+")


def _loosen(expression: str) -> str:
    expression = _LOOK_AROUND.sub("", expression)
    expression = _REPEATS.sub(lambda count: f"{{{min(int(count[1]), _MAX_REPEATS)},}}", expression)
    return _POSSESSIVE.sub("", expression)


def _alternatives(words: tuple[bytes, ...]) -> str:
    return "|".join(word.decode() for word in words)


_PASSWORD = f"(?i:{_alternatives(secret_rules.PASSWORD_NAMES)})"
_NAME = (
    f"(?:{_PASSWORD}|(?i:pass|{_alternatives(secret_rules.SECRET_NAMES)}"
    f"|(?:{_alternatives(secret_rules.KEY_NAMES)})[_.-]*key)|_KEY)"
)
_ENDING = "(?i:word|wd|phrase|code|pass|secret|token|key)"
_BLANK = r"(?:\s|\\[nrt])"
_SIGN = r"[\\\"'`\]]*[ \t]*[=:]"
SECRET_HINT = "|".join(
    (
        *dict.fromkeys(_loosen(rule.expression) for rule in secret_rules.TOKEN_RULES),
        r"(?i:bearer)[ \t%\\]",
        r"(?i:basic)(?:[ \t]|%20|\\+t)+[A-Za-z0-9+/]{4,}",
        f"(?i:{_alternatives(secret_rules.SECRET_HEADERS)}){_SIGN}",
        r"\dQ~",
        "-----BEGIN ",
        r"://[^\s/@:\"'<>\\?#]*(?::[^\s\"'<>\\]+)?@",
        f"{_NAME}{_SIGN}",
        f"(?:<|[\\s\"'`]--?|(?i:name|key)[\\\\\"' \\t]*[:=][\\\\\"' \\t]*)[A-Za-z0-9_.:-]*{_ENDING}(?:[\\\\\"'`>]|\\s)",
        f"{_ENDING}</key>",
        f"{_PASSWORD}(?:[ \\t]+(?i:is|was)[ \\t:]|[ \\t(]+[\\\\\"'`])",
        f"login{_BLANK}+[^\\s\\\\]+{_BLANK}+(?i:password){_BLANK}",
        r"(?i:sig|signature)=[A-Za-z0-9%+/_~.=-]{4,}",
        r"(?i:identified)[ \t]+(?i:with|by)[ \t]",
        r"[\s\"'`]-(?:[pPuUaw]|-user|-proxy-user)[\s=\"'`\\,]",
        r"(?:mysql|mariadb|7z).*[\s\"'`]-p",
    )
)
