"""The secret scanner: find secrets in UTF-8 text with a fast search for candidates and a rule check at each candidate.

The fast search takes a few milliseconds per megabyte, because it is a handful of searches for fixed bytes:

- keys and tokens are long: after all of their characters are mapped to one, a run of twenty is a single search;
- names of secrets end in one of a few ways before a sign or a quote: after the letters of those endings are mapped to
  classes, three searches find `password=`, `"api_key":`, `Token =` and little else;
- a private key has its first line, a password in a URL its `@`, a header its name or scheme.
"""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

from hypaware.privacy import secret_rules

_PLACEHOLDER = re.compile(
    rb"(?i)\$|<|\{\{|%[({]|\*{3}|\.{3}|x{3,}|your[_-]|example|placeholder|change[_-]?me|redacted|none$|null$|nil$"
    rb"|undefined$|true$|false$|string$|str$|bytes$|required$|optional$|test$|secret$|token$|pass(?:word)?$|bearer$|basic$"
    rb"|(?:process\.env|os\.environ|os\.getenv|import\.meta|self\.|this\.|config\.|settings\.|env\.|args\.|options\.)"
    rb"|(?:~|\.{0,2})/(?:home|run|etc|tmp|usr|var|opt|users|private|root|mnt|srv|dev|proc|data|app|secrets?|library)\b"
    rb"|(?:https?|file)://"
)
_WORDS = re.compile(rb"[A-Za-z_]+(?:[._-][A-Za-z_]+)*")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z_]*(?:[0-9]{1,2})?(?:[._-][A-Za-z_]+[0-9]{0,2})*")
_RUN_LENGTH = 20
_LOOK_BACK = 48
_MAX_NAME = 64
_MAX_VALUE = 2048
_JUDGED_LENGTH = 128
_NEEDLES = (b"123=", b"245=", b"1.111.2.14=")
_ALL_TOKENS = re.compile("|".join(dict.fromkeys(rule.expression for rule in secret_rules.TOKEN_RULES)).encode())
_EACH_TOKEN = tuple((rule.kind, re.compile(rule.expression.encode())) for rule in secret_rules.TOKEN_RULES)
_TOKEN_CHARACTERS = re.compile(rb"[A-Za-z0-9_.~+/=:-]*+")
_WORD = re.compile(rb"[A-Za-z0-9]")
_ValueEnds = dict[re.Pattern[bytes], tuple[int, int]]
"""For each value pattern the start and end of its last match."""
# The more repetitions an automaton counts, the more states it needs.
_MAX_REPEATS = 4
_LOOK_AROUND = re.compile(r"\(\?<?[!=][^)]*\)")
_REPEATS = re.compile(r"\{(\d+)(?:,\d*)?\}\+?")
_POSSESSIVE = re.compile(r"(?<=[*+?])\+")


def _build_class_table(members: dict[str, str]) -> bytes:
    """Build a translation table that maps each character to its class and all others to a dot."""
    table = bytearray(b"." * 256)
    for to, characters in members.items():
        for character in characters:
            table[ord(character)] = ord(to)
    return bytes(table)


_RUN_TABLE = _build_class_table({"a": string.ascii_letters + string.digits + "_-"})
# password, passwd, pwd · secret, token, key · passphrase; then a sign, a quote or a space.
_ENDING_TABLE = _build_class_table(
    {"1": "oOsSpP", "2": "rRwWkK", "3": "dD", "4": "eE", "5": "tTnNyY", "=": "=: \t\"'\\`]"}
)


@dataclass(frozen=True)
class SecretSpan:
    start: int
    end: int
    kind: str


def find_secrets(data: bytes, off: frozenset[str] = frozenset()) -> list[SecretSpan]:
    """Return the secrets in the text, in order and without overlaps."""
    lowered = data.lower()
    found = [
        *_find_keys(data),
        *_find_after_schemes(data, lowered),
        *_find_in_authorizations(data, lowered),
        *_find_in_cookies(data, lowered),
        *_find_private_keys(data),
        *_find_url_passwords(data),
        *_find_assignments(data),
    ]
    # Overlapping spans get the kind of the one that starts first.
    joined: list[SecretSpan] = []
    for span in sorted(found, key=lambda each: (each.start, -each.end)):
        if span.kind in off:
            continue
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            joined[-1] = SecretSpan(last.start, max(last.end, span.end), last.kind)
        else:
            joined.append(span)
    return joined


def _find_keys(data: bytes) -> Iterator[SecretSpan]:
    alike = data.translate(_RUN_TABLE)
    needle = b"a" * _RUN_LENGTH
    has_azure = b"Q~" in data
    done = 0
    at = alike.find(needle)
    while at >= 0:
        before = data[at - 1] if at else 0
        # Only some tokens start with a part that ends in one of these: `ya29.`, `hooks.slack.com/…`.
        begin = max(done, at - _LOOK_BACK) if before in b"./:~" else at
        end = _TOKEN_CHARACTERS.match(data, at).end()  # type: ignore[union-attr]
        while token := _ALL_TOKENS.search(data, begin, end):
            start = token.start()
            if start and _WORD.match(data, start - 1):
                begin = start + 1
                continue
            begin = token.end()
            yield SecretSpan(start, begin, next(kind for kind, each in _EACH_TOKEN if each.match(data, start, end)))
        if has_azure:
            for secret in secret_rules.AZURE_SECRET.finditer(data, max(done, at - _LOOK_BACK), end):
                yield SecretSpan(*secret.span(), secret_rules.AZURE_CLIENT)
        done = end
        at = alike.find(needle, end)


def _match_after(needle: bytes, data: bytes, lowered: bytes, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """Yield the match of the pattern after each occurrence of a needle, which is in lower case."""
    at = lowered.find(needle)
    while at >= 0:
        after = at + len(needle)
        if found := pattern.match(data, after):
            after = found.end()
            yield found
        at = lowered.find(needle, after)


def _find_after_schemes(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find credentials after a scheme that only a credential can follow: `Basic …`, in any case."""
    names_header = secret_rules.AUTHORIZATION in lowered
    for scheme, (kind, form) in secret_rules.SCHEMES.items():
        for token in _match_after(scheme, data, lowered, form):
            if _is_mixed(token[1]) if kind == secret_rules.BEARER else _is_basic_credential(token[1], names_header):
                yield SecretSpan(*token.span(1), kind)


def _is_basic_credential(token: bytes, names_header: bool) -> bool:
    """Return whether the token encodes user and password; they may be binary if the text names the header."""
    try:
        said = base64.b64decode(token + b"=" * (-len(token) % 4), validate=True)
    except ValueError:
        return False
    # Bytes that are not UTF-8 become surrogates, which are not printable.
    return b":" in said and (names_header or said.decode(errors="surrogateescape").isprintable())


def _find_in_authorizations(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find credentials of other schemes or without a scheme; the value must look like a secret."""
    for found in _match_after(secret_rules.AUTHORIZATION, data, lowered, secret_rules.AUTHORIZATION_VALUE):
        value, scheme = found["value"], (found["scheme"] or b"").strip().lower()
        if scheme not in secret_rules.SCHEMES and _is_secret(
            value, secret_rules.ASSIGNED, is_env=False, is_quoted=False
        ):
            yield SecretSpan(*found.span("value"), secret_rules.ASSIGNED)


def _find_in_cookies(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find the values of cookies; their names and attributes are no secrets."""
    for cookie in _match_after(secret_rules.COOKIE_NAME, data, lowered, secret_rules.COOKIE_VALUE):
        begin = cookie.start(1)
        for pair in cookie[1].split(b";"):
            name, sign, value = pair.partition(b"=")
            if sign and name.strip().lower() not in secret_rules.COOKIE_ATTRIBUTES and _is_cookie_secret(value):
                start = begin + len(name) + 1
                yield SecretSpan(start, start + len(value.rstrip()), secret_rules.COOKIE)
            begin += len(pair) + 1


def _is_cookie_secret(value: bytes) -> bool:
    value = value.rstrip()
    return (
        len(value) >= secret_rules.COOKIE_MIN_LENGTH
        and secret_rules.COOKIE_TOKEN.fullmatch(value) is not None
        and _is_mixed(value)
        and not _is_placeholder(value)
    )


def _find_private_keys(data: bytes) -> Iterator[SecretSpan]:
    at = data.find(b"-----BEGIN")
    while at >= 0:
        after = at + 1
        if begin := secret_rules.PEM_BEGIN.match(data, at):
            cut = secret_rules.PEM_REST.match(data, begin.end())
            end = secret_rules.PEM_END.search(data, begin.end(), begin.end() + secret_rules.PEM_MAX_LENGTH)
            after = end.end() if end else cut.end() if cut else begin.end()
            yield SecretSpan(at, after, secret_rules.PRIVATE_KEY)
        at = data.find(b"-----BEGIN", after)


def _find_url_passwords(data: bytes) -> Iterator[SecretSpan]:
    if b"@" in data:
        for address in secret_rules.URL_CREDENTIALS.finditer(data):
            if not _is_placeholder(address[1]):
                yield SecretSpan(*address.span(1), secret_rules.URL_PASSWORD)


def _find_assignments(data: bytes) -> Iterator[SecretSpan]:
    alike = data.translate(_ENDING_TABLE)
    for needle in _NEEDLES:
        ends: _ValueEnds = {}
        at = alike.find(needle)
        while at >= 0:
            sign = at + len(needle) - 1
            if span := _read_assignment(data, sign, ends):
                yield span
                sign = span.end
            at = alike.find(needle, sign)


def _read_assignment(data: bytes, sign: int, ends: _ValueEnds) -> SecretSpan | None:
    name = data[max(0, sign - _MAX_NAME) : sign]
    if name.endswith(b"PWD") and not name.endswith(b"_PWD"):
        # The working directory of a shell.
        return None
    kind = _kind_of_name(name) or (secret_rules.ASSIGNED if name.endswith(b"_KEY") else None)
    assignment = secret_rules.ASSIGNMENT.match(data, sign) if kind else None
    value = _find_value(data, sign, assignment, ends) if assignment else None
    if kind is None or assignment is None or value is None:
        return None
    start, end, is_env = value
    # The beginning of a very long value is enough to judge it.
    text = data[start : end if end - start < _MAX_VALUE else start + _JUDGED_LENGTH]
    return SecretSpan(start, end, kind) if _is_secret(text, kind, is_env, is_quoted=bool(assignment["open"])) else None


def _kind_of_name(name: bytes) -> str | None:
    """Return the kind of secret that a name announces, or None."""
    name = name.lower()
    if name.endswith(secret_rules.PASSWORD_NAMES):
        return secret_rules.PASSWORD
    if name.endswith(secret_rules.SECRET_NAMES):
        return secret_rules.ASSIGNED
    if name.endswith(b"key") and name[:-3].rstrip(b"_.-").endswith(secret_rules.KEY_NAMES):
        return secret_rules.ASSIGNED
    return None


def _find_value(data: bytes, sign: int, assignment: re.Match[bytes], ends: _ValueEnds) -> tuple[int, int, bool] | None:
    """Return where the value starts and ends, and whether it is written as in a file of environment variables."""
    start = assignment.end()
    is_env = (
        assignment["sign"] == b"="
        and not (assignment["close"] or assignment["space"] or assignment["after"])
        and secret_rules.ENV_NAME.search(data, max(0, sign - _MAX_NAME), sign) is not None
    )
    if opened := assignment["open"]:
        forms = secret_rules.ESCAPED_QUOTED_VALUE if len(opened) > 1 else secret_rules.QUOTED_VALUE
        pattern = forms[opened[-1:]]
    else:
        pattern = secret_rules.ENV_VALUE if is_env else secret_rules.BARE_VALUE
    # Nested values end together, so no text is scanned twice.
    begin, end = ends.get(pattern, (0, 0))
    if not begin <= start < end:
        found = pattern.match(data, start)
        end = found.end() if found else start
        ends[pattern] = (start, end)
    # A quoted value of that length is a document; secrets inside it are found by their form.
    if end == start or (opened and end >= start + _MAX_VALUE):
        return None
    if pattern is secret_rules.BARE_VALUE and data[end : end + 1] in (b"(", b"["):
        # A function call: this is program code, and the secret itself is not in the text.
        return None
    return start, end, is_env


def classify_member(name: str, value: str) -> str | None:
    """Return the kind of secret that a JSON object holds under a name; None if the value is no secret."""
    kind = _kind_of_name(name[-_MAX_NAME:].encode("utf-8", "surrogatepass"))
    if kind is None or len(value) >= _MAX_VALUE:
        return None
    return kind if _is_secret(value.encode("utf-8", "surrogatepass"), kind, is_env=False, is_quoted=True) else None


def match_secret_header(name: str) -> str | None:
    """Return which of the scanned headers a JSON object's key denotes, or None."""
    name = name.lower()
    return next((header.decode() for header in secret_rules.SECRET_HEADERS if name.endswith(header.decode())), None)


def _is_secret(value: bytes, kind: str, is_env: bool, is_quoted: bool) -> bool:
    if _is_placeholder(value):
        return False
    is_password = kind == secret_rules.PASSWORD
    if is_env:
        return len(value) >= 6 and (is_password or not value.isdigit())
    if len(value) < (6 if is_password else 8) or b" " in value or value.isdigit():
        return False
    if is_password and is_quoted:
        return _WORDS.fullmatch(value) is None
    return _is_mixed(value) and _IDENTIFIER.fullmatch(value) is None


def _is_placeholder(value: bytes) -> bool:
    return _PLACEHOLDER.match(value) is not None or len(set(value)) <= 2


def _is_mixed(value: bytes) -> bool:
    """Return whether the value has letters and at least two digits, as random values nearly always do."""
    digits = sum(48 <= byte <= 57 for byte in value)
    return digits >= 2 and any(65 <= byte <= 90 or 97 <= byte <= 122 for byte in value)


def _loosen(expression: str) -> str:
    expression = _LOOK_AROUND.sub("", expression)
    expression = _REPEATS.sub(lambda count: f"{{{min(int(count[1]), _MAX_REPEATS)},}}", expression)
    return _POSSESSIVE.sub("", expression)


def _alternatives(words: tuple[bytes, ...]) -> str:
    return "|".join(word.decode() for word in words)


_NAME_PATTERN = (
    f"(?i:{_alternatives(secret_rules.PASSWORD_NAMES)}|{_alternatives(secret_rules.SECRET_NAMES)}"
    f"|(?:{_alternatives(secret_rules.KEY_NAMES)})[_.-]*key)|_KEY"
)
_SIGN_PATTERN = r"[\\\"'`\]]*[ \t]*[=:]"
SECRET_HINT = "|".join(
    (
        *dict.fromkeys(_loosen(rule.expression) for rule in secret_rules.TOKEN_RULES),
        r"(?i:bearer)[ \t%\\]",
        r"(?i:basic)(?:[ \t]|%20|\\+t)+[A-Za-z0-9+/]{4,}",
        f"(?i:{_alternatives(secret_rules.SECRET_HEADERS)}){_SIGN_PATTERN}",
        r"\dQ~",
        "-----BEGIN ",
        _loosen(secret_rules.URL_CREDENTIALS.pattern.decode()),
        f"(?:{_NAME_PATTERN}){_SIGN_PATTERN}",
    )
)
"""A prefilter that matches every text in which a rule finds a secret, and few others.

It is made for RE2, the automaton engine in Arrow, which checks millions of texts at once; only texts that match are
given to the rules. It is derived from the rules by loosening them: no look-around, no upper bounds, at most four
repetitions where a rule requires many. It may therefore match too often, but never too rarely.
"""
