"""The secret scanner: find secrets in UTF-8 text with a fast search for candidates and a rule check at each candidate.

The fast search takes about a millisecond per megabyte and rule, because it looks for fixed characters:

- keys and tokens are long: after all of their characters are mapped to one, a run of twenty is a single search;
- names of secrets end in one of five ways before a sign, a quote, a bracket or a space;
- a private key has its first line, a password in a URL its `@`, a header its name or scheme, an option its dash.
"""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypaware.privacy import secret_rules
from hypaware.privacy.secret_rules import is_mixed, is_placeholder, is_secret

_RUN_LENGTH = 20
_LOOK_BACK = 48
_MAX_NAME = 96
_NAME_CHARACTERS = (string.ascii_letters + string.digits + "_.:-").encode()
_MAX_VALUE = 2048
_JUDGED_LENGTH = 128
_MAX_COMMAND = 256
_BRACKETS = {b")": b"(", b"]": b"[", b"}": b"{"}
_BEFORE_VALUE = rb"(?=[=: \t\r\n\"'\\`\]<>(])"
_NAMES = tuple(
    re.compile(name.replace(b"%b", _BEFORE_VALUE))
    for name in (
        rb"pass(?:(?:word|wd|phrase|code)%b|(?=[=:\"'\\]))",
        rb"pwd%b",
        rb"secret%b",
        rb"token%b",
        rb"key(?<=[a-z_.-]key)%b",
    )
)
"""Endings of names. Each starts with plain characters, which makes the search fast."""
_WORDS = {word: re.compile(word) for word in (*secret_rules.SCHEMES, secret_rules.COOKIE_NAME, secret_rules.SQL_NAME)}
_AUTH = re.compile(rb"auth(?:orization)?+(?=[=: \t\"'\\`\]])")
_ALL_TOKENS = re.compile(
    f"(?<![A-Za-z0-9])(?:{'|'.join(dict.fromkeys(rule.expression for rule in secret_rules.TOKEN_RULES))})".encode()
)
_EACH_TOKEN = tuple((rule.kind, re.compile(rule.expression.encode())) for rule in secret_rules.TOKEN_RULES)
_TOKEN_CHARACTERS = re.compile(rb"[A-Za-z0-9_.~+/=:-]*+")
_ValueEnds = dict[re.Pattern[bytes], tuple[int, int]]
"""Pattern → start and end of its last match. Nested values end together, so no text is scanned twice."""


def _build_class_table(members: dict[str, str]) -> bytes:
    """Build a translation table that maps each character to its class and all others to a dot."""
    table = bytearray(b"." * 256)
    for to, characters in members.items():
        for character in characters:
            table[ord(character)] = ord(to)
    return bytes(table)


_RUN_TABLE = _build_class_table({"a": string.ascii_letters + string.digits + "_-"})


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
        *(_find_in_cookies(data, lowered) if secret_rules.COOKIE_NAME in lowered else ()),
        *(_find_private_keys(data) if b"-----BEGIN" in data else ()),
        *_find_in_urls(data, lowered),
        *(_find_in_sql(data, lowered) if secret_rules.SQL_NAME in lowered else ()),
        *_find_in_commands(data),
        *_find_named(data, lowered),
    ]
    if not found:
        return found
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
    done = 0
    at = alike.find(needle)
    while at >= 0:
        before = data[at - 1] if at else 0
        # Only some tokens start with a part that ends in one of these: `ya29.`, `hooks.slack.com/…`.
        begin = max(done, at - _LOOK_BACK) if before in b"./:~" else at
        end = _TOKEN_CHARACTERS.match(data, at).end()  # type: ignore[union-attr]
        while token := _ALL_TOKENS.search(data, begin, end):
            start, begin = token.span()
            yield SecretSpan(start, begin, next(kind for kind, each in _EACH_TOKEN if each.match(data, start, end)))
        done = end
        at = alike.find(needle, end)
    for secret in secret_rules.AZURE_SECRET.finditer(data):
        yield SecretSpan(secret.start() - secret_rules.AZURE_PREFIX_LENGTH, secret.end(), secret_rules.AZURE_CLIENT)


def _match_after(
    word: re.Pattern[bytes], data: bytes, lowered: bytes, pattern: re.Pattern[bytes]
) -> Iterator[re.Match[bytes]]:
    """Yield the match of the pattern after each occurrence of a word in lower case."""
    after = 0
    for each in word.finditer(lowered):
        if each.start() >= after and (found := pattern.match(data, each.end())):
            after = found.end()
            yield found


def _find_after_schemes(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find credentials after a scheme that only a credential can follow: `Basic …`, in any case."""
    for scheme, (kind, form) in secret_rules.SCHEMES.items():
        for token in _match_after(_WORDS[scheme], data, lowered, form):
            if is_mixed(token[1]) if kind == secret_rules.BEARER else _is_basic_credential(token[1], lowered):
                yield SecretSpan(*token.span(1), kind)


def _is_basic_credential(token: bytes, lowered: bytes) -> bool:
    """Return whether the token encodes user and password; they may be binary if the text names the header."""
    try:
        said = base64.b64decode(token + b"=" * (-len(token) % 4), validate=True)
    except ValueError:
        return False
    # Bytes that are not UTF-8 become surrogates, which are not printable.
    return b":" in said and (
        said.decode(errors="surrogateescape").isprintable() or secret_rules.AUTHORIZATION in lowered
    )


def _find_in_authorizations(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find credentials of other schemes or without a scheme; the value must look like a secret."""
    for name in _AUTH.finditer(lowered):
        if name[0] == secret_rules.AUTH_NAME:
            found = secret_rules.AUTH_VALUE.match(data, name.end())
            if found and _is_basic_credential(found[1], lowered):
                yield SecretSpan(*found.span(1), secret_rules.BASIC)
        elif found := secret_rules.AUTHORIZATION_VALUE.match(data, name.end()):
            scheme = (found["scheme"] or b"").strip().lower()
            if scheme not in secret_rules.SCHEMES and is_secret(found["value"]):
                yield SecretSpan(*found.span("value"), secret_rules.ASSIGNED)


def _find_in_cookies(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find the values of cookies; their names and attributes are no secrets."""
    for cookie in _match_after(_WORDS[secret_rules.COOKIE_NAME], data, lowered, secret_rules.COOKIE_VALUE):
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
        and is_mixed(value)
        and not is_placeholder(value)
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


def _find_in_urls(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    if b"@" in data:
        for url in secret_rules.URL_CREDENTIALS.finditer(data):
            group = url.lastgroup or ""
            if group == "slashed" and not data.endswith(secret_rules.DATABASE_SCHEMES, 0, url.start()):
                continue
            if group == "user" and (len(url["user"]) < _RUN_LENGTH or not is_mixed(url["user"])):
                continue
            if not is_placeholder(url[group]):
                yield SecretSpan(*url.span(group), secret_rules.URL_PASSWORD)
    for signature in secret_rules.URL_SIGNATURE.finditer(lowered):
        if is_mixed(signature[1]):
            yield SecretSpan(*signature.span(1), secret_rules.SIGNATURE)


def _find_in_sql(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    for opening in _match_after(_WORDS[secret_rules.SQL_NAME], data, lowered, secret_rules.SQL_PASSWORD):
        if span := _read_value(data, opening, secret_rules.PASSWORD, {}, is_certain=True):
            yield span


def _find_in_commands(data: bytes) -> Iterator[SecretSpan]:
    """Find passwords after short options, which mean something else for other commands."""
    for option in secret_rules.SHORT_OPTION.finditer(data):
        name, at = option["name"], option.start()
        opening: re.Match[bytes] | None = option
        if name not in secret_rules.COMMANDS:
            expected = secret_rules.USER_COMMANDS
            opening = secret_rules.USER.match(data, option.end())
        else:
            expected = secret_rules.COMMANDS[name] if option["gap"] else secret_rules.ATTACHED_COMMANDS
        command = data[max(0, at - _MAX_COMMAND) : at].replace(b"\\\n", b"  ")
        if opening and expected.search(command, max(command.rfind(b"\n"), command.rfind(b"\\n")) + 1):
            span = _read_value(data, option, secret_rules.PASSWORD, {}, start=opening.end(), is_certain=True)
            if span:
                yield span


def _find_named(data: bytes, lowered: bytes) -> Iterator[SecretSpan]:
    """Find values next to the name of a secret."""
    for name in _NAMES:
        ends: _ValueEnds = {}
        done = 0
        for each in name.finditer(lowered):
            sign = each.end()
            if sign > done and (span := _read_named(data, sign, ends)):
                done = span.end
                yield span


def _read_named(data: bytes, sign: int, ends: _ValueEnds) -> SecretSpan | None:
    name = data[max(0, sign - _MAX_NAME) : sign]
    kind = _kind_of_name(name)
    if kind is None or (name.endswith(b"PWD") and not name.endswith(b"_PWD")):
        # PWD alone is the working directory of a shell.
        return None
    if found := secret_rules.ASSIGNMENT.match(data, sign):
        is_env = (
            found["sign"] == b"="
            and not (found["close"] or found["space"] or found["after"])
            and secret_rules.ENV_NAME.search(name) is not None
        )
        if span := _read_value(data, found, kind, ends, is_certain=is_env):
            return span
    head = name.rstrip(_NAME_CHARACTERS)
    for rule in _RULES_BY_START.get(data[sign : sign + 1], ()):
        if (
            (kind == secret_rules.PASSWORD or not rule.is_for_passwords)
            and rule.accepts(head, name[len(head) :])
            and (found := rule.opening.match(data, sign))
        ):
            return _read_value(data, found, kind, ends, form=rule.value)
    return None


@dataclass(frozen=True)
class NamedRule:
    """A way to write a value next to its name, other than an assignment."""

    starts: str
    """The characters that may follow the name."""
    opening: re.Pattern[bytes]
    accepts: Callable[[bytes, bytes], bool]
    """(Text before the name, name) → whether the name is written in this way."""
    value: re.Pattern[bytes] | None = None
    """The form of the value, if it is not quoted or one word."""
    is_for_passwords: bool = False


def _is_pair(head: bytes, _name: bytes) -> bool:
    label = head.rstrip(b"\\\"' \t")
    return label.endswith((b":", b"=")) and label.rstrip(b"\\\"' \t:=").lower().endswith((b"name", b"key"))


_NAMED_RULES = (
    NamedRule("> \t", secret_rules.ELEMENT, lambda head, _: head.endswith(b"<"), secret_rules.ELEMENT_VALUE),
    NamedRule("<", secret_rules.PROPERTY, lambda head, _: head.endswith(b">"), secret_rules.ELEMENT_VALUE),
    NamedRule(" \t\"'`\\", secret_rules.OPTION, lambda _, name: name.startswith(b"-")),
    NamedRule("\"'\\ \t\r\n", secret_rules.PAIR, _is_pair),
    NamedRule(
        " \t\r\n\\",
        secret_rules.NETRC,
        lambda head, _: secret_rules.NETRC_LOGIN.search(head) is not None,
        is_for_passwords=True,
    ),
    NamedRule("(", secret_rules.CALL, lambda _head, _name: True, is_for_passwords=True),
    NamedRule(" \t", secret_rules.SENTENCE, lambda _head, _name: True, is_for_passwords=True),
)
_RULES_BY_START = {
    start.encode(): tuple(rule for rule in _NAMED_RULES if start in rule.starts)
    for start in {start for rule in _NAMED_RULES for start in rule.starts}
}


def _kind_of_name(name: bytes) -> str | None:
    """Return the kind of secret that a name announces, or None."""
    if name.endswith(b"_KEY"):
        return secret_rules.ASSIGNED
    lowered = name.lower()
    if lowered.endswith(secret_rules.PASSWORD_NAMES):
        return secret_rules.PASSWORD
    if lowered.endswith(secret_rules.SECRET_NAMES):
        return secret_rules.ASSIGNED
    if lowered.endswith(b"key") and lowered[:-3].rstrip(b"_.-").endswith(secret_rules.KEY_NAMES):
        return secret_rules.ASSIGNED
    return secret_rules.PASSWORD if secret_rules.SHORT_PASSWORD_NAME.search(name) else None


def _read_value(
    data: bytes,
    opening: re.Match[bytes],
    kind: str,
    ends: _ValueEnds,
    *,
    start: int | None = None,
    form: re.Pattern[bytes] | None = None,
    is_certain: bool = False,
) -> SecretSpan | None:
    """Return the value that starts after the opening, unless it is no secret.

    `is_certain` means that only a secret can be there, as in a file of environment variables.
    """
    start = opening.end() if start is None else start
    opened = b"" if form else opening["open"] or b""
    if form is None:
        form = secret_rules.QUOTED_VALUES[opened] if opened else secret_rules.BARE_VALUE
    begin, end = ends.get(form, (0, 0))
    if not begin <= start < end:
        found = form.match(data, start)
        end = found.end() if found else start
        ends[form] = (start, end)
    # A quoted value of that length is a document; secrets inside it are found by their form.
    if end == start or (opened and end >= start + _MAX_VALUE):
        return None
    if form is secret_rules.BARE_VALUE:
        if not is_certain and secret_rules.CODE.match(data, start):
            # Program code calls a function here; the secret itself is not in the text.
            return None
        end = _trim(data, start, end, ends, is_certain)
    # The beginning of a very long value is enough to judge it.
    text = data[start : end if end - start < _MAX_VALUE else start + _JUDGED_LENGTH]
    is_quoted = form is not secret_rules.BARE_VALUE
    return SecretSpan(start, end, kind) if is_secret(text, kind, is_certain, is_quoted=is_quoted) else None


def _trim(data: bytes, start: int, end: int, ends: _ValueEnds, is_certain: bool) -> int:
    """Return where an unquoted value ends: before the next field, punctuation, or the bracket that encloses it."""
    if not is_certain:
        begin, cut = ends.get(secret_rules.BARE_END, (0, 0))
        if not begin <= start < cut:
            found = secret_rules.BARE_END.search(data, start, end + _MAX_NAME)
            cut = found.start() if found else end
            ends[secret_rules.BARE_END] = (start, cut)
        end = min(end, cut)
    while end > start:
        last = data[end - 1 : end]
        opener = _BRACKETS.get(last)
        is_closing = (
            opener and end - start < _MAX_VALUE and data.count(opener, start, end) < data.count(last, start, end)
        )
        if is_closing or (not is_certain and last in b",;.:"):
            end -= 1
        else:
            break
    return end


def classify_member(name: str, value: str) -> str | None:
    """Return the kind of secret that a JSON object holds under a name; None if the value is no secret."""
    kind = _kind_of_name(name[-_MAX_NAME:].encode("utf-8", "surrogatepass"))
    if kind is None or len(value) >= _MAX_VALUE:
        return None
    return kind if is_secret(value.encode("utf-8", "surrogatepass"), kind, is_quoted=True) else None


def match_secret_header(name: str) -> str | None:
    """Return which of the scanned headers a JSON object's key denotes, or None."""
    name = name.lower()
    return next((header.decode() for header in secret_rules.SECRET_HEADERS if name.endswith(header.decode())), None)
