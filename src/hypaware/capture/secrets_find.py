"""The secret scanner: find secrets in UTF-8 text with a fast search for candidates and a rule check at each candidate.

The fast search takes a few milliseconds per megabyte, because it is a handful of searches for fixed bytes:

- keys and tokens are long: after all of their characters are mapped to one, a run of twenty is a single search;
- names of secrets end in one of a few ways before a sign or a quote: after the letters of those endings are mapped to
  classes, three searches find `password=`, `"api_key":`, `Token =` and little else;
- a private key has its first line, a password in a URL its `@`, a header its name or scheme.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hypaware.capture import secrets_headers
from hypaware.capture import secrets_judged as judged
from hypaware.capture import secrets_rules as rules

_RUN = 20
_LOOK_BACK = 48
_LONGEST_NAME = 64
_LONGEST_VALUE = 2048
_ENOUGH = 128


@dataclass(frozen=True)
class Span:
    start: int
    end: int
    kind: str


def _classes(members: dict[str, str]) -> bytes:
    """Build a translation table that maps each character to its class and all others to a dot."""
    table = bytearray(b"." * 256)
    for to, characters in members.items():
        for character in characters:
            table[ord(character)] = ord(to)
    return bytes(table)


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RUNS = _classes({"a": _LETTERS + "0123456789_-"})
# password, passwd, pwd · secret, token, key · passphrase; then a sign, a quote or a space.
_ENDINGS = _classes({"1": "oOsSpP", "2": "rRwWkK", "3": "dD", "4": "eE", "5": "tTnNyY", "=": "=: \t\"'\\`]"})
_NEEDLES = (b"123=", b"245=", b"1.111.2.14=")

_ALL_TOKENS = re.compile("|".join(dict.fromkeys(rule.expression for rule in rules.TOKENS)).encode())
_EACH_TOKEN = tuple((rule.kind, re.compile(rule.expression.encode())) for rule in rules.TOKENS)
_TOKEN_CHARACTERS = re.compile(rb"[A-Za-z0-9_.~+/=:-]*+")
_WORD = re.compile(rb"[A-Za-z0-9]")


Ends = dict[re.Pattern[bytes], tuple[int, int]]
"""For each value pattern the start and end of its last match."""


def find(data: bytes, off: frozenset[str] = frozenset()) -> list[Span]:
    """Return the secrets in the text, in order and without overlaps."""
    looks = (_keys, _in_headers, _private_keys, _passwords_in_addresses, _assigned)
    found = [span for look in looks for span in look(data)]
    if off:
        found = [span for span in found if span.kind not in off]
    return _joined(found)


def _joined(found: list[Span]) -> list[Span]:
    """Merge overlapping spans under the kind of the one that starts first."""
    joined: list[Span] = []
    for span in sorted(found, key=lambda each: (each.start, -each.end)):
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            joined[-1] = Span(last.start, max(last.end, span.end), last.kind)
        else:
            joined.append(span)
    return joined


def _keys(data: bytes) -> Iterator[Span]:
    alike = data.translate(_RUNS)
    needle = b"a" * _RUN
    has_azure = b"Q~" in data
    done = 0
    at = alike.find(needle)
    while at >= 0:
        before = data[at - 1] if at else 0
        # Only some tokens start with a part that ends in one of these: `ya29.`, `hooks.slack.com/…`.
        begin = max(done, at - _LOOK_BACK) if before in b"./:~" else at
        end = _TOKEN_CHARACTERS.match(data, at).end()  # type: ignore[union-attr]
        yield from _tokens(data, begin, end)
        if has_azure:
            for secret in rules.AZURE_SECRET.finditer(data, max(done, at - _LOOK_BACK), end):
                yield Span(*secret.span(), rules.AZURE_CLIENT)
        done = end
        at = alike.find(needle, end)


def _tokens(data: bytes, begin: int, end: int) -> Iterator[Span]:
    while token := _ALL_TOKENS.search(data, begin, end):
        start = token.start()
        if start and _WORD.match(data, start - 1):
            begin = start + 1
            continue
        begin = token.end()
        yield Span(start, begin, next(kind for kind, each in _EACH_TOKEN if each.match(data, start, end)))


def _in_headers(data: bytes) -> Iterator[Span]:
    return (Span(*found) for found in secrets_headers.find(data))


def _private_keys(data: bytes) -> Iterator[Span]:
    at = data.find(b"-----BEGIN")
    while at >= 0:
        after = at + 1
        if begin := rules.PEM_BEGIN.match(data, at):
            cut = rules.PEM_CUT.match(data, begin.end())
            end = rules.PEM_END.search(data, begin.end(), begin.end() + rules.PEM_MOST)
            after = end.end() if end else cut.end() if cut else begin.end()
            yield Span(at, after, rules.PRIVATE_KEY)
        at = data.find(b"-----BEGIN", after)


def _passwords_in_addresses(data: bytes) -> Iterator[Span]:
    if b"@" in data:
        for address in rules.URL.finditer(data):
            if not judged.is_placeholder(address[1]):
                yield Span(*address.span(1), rules.URL_PASSWORD)


def _assigned(data: bytes) -> Iterator[Span]:
    alike = data.translate(_ENDINGS)
    for needle in _NEEDLES:
        ends: Ends = {}
        at = alike.find(needle)
        while at >= 0:
            sign = at + len(needle) - 1
            if span := _assignment(data, sign, ends):
                yield span
                sign = span.end
            at = alike.find(needle, sign)


def _assignment(data: bytes, sign: int, ends: Ends) -> Span | None:
    name = data[max(0, sign - _LONGEST_NAME) : sign]
    if name.endswith(b"PWD") and not name.endswith(b"_PWD"):
        # The working directory of a shell.
        return None
    kind = _kind_named(name) or (rules.ASSIGNED if name.endswith(b"_KEY") else None)
    assignment = rules.ASSIGNMENT.match(data, sign) if kind else None
    value = _value(data, sign, assignment, ends) if assignment else None
    if kind is None or assignment is None or value is None:
        return None
    start, end, is_env = value
    # The beginning of a very long value is enough to judge it.
    text = data[start : end if end - start < _LONGEST_VALUE else start + _ENOUGH]
    return Span(start, end, kind) if judged.is_secret(text, kind, is_env, is_quoted=bool(assignment["open"])) else None


def _kind_named(name: bytes) -> str | None:
    """Return the kind of secret that a name announces, or None."""
    name = name.lower()
    if name.endswith(rules.PASSWORD_NAMES):
        return rules.PASSWORD
    if name.endswith(rules.SECRET_NAMES):
        return rules.ASSIGNED
    if name.endswith(b"key") and name[:-3].rstrip(b"_.-").endswith(rules.KEY_NAMES):
        return rules.ASSIGNED
    return None


def _value(data: bytes, sign: int, assignment: re.Match[bytes], ends: Ends) -> tuple[int, int, bool] | None:
    """Return where the value starts and ends, and whether it is written as in a file of environment variables."""
    start = assignment.end()
    is_env = (
        assignment["sign"] == b"="
        and not (assignment["close"] or assignment["space"] or assignment["after"])
        and rules.ENV_NAME.search(data, max(0, sign - _LONGEST_NAME), sign) is not None
    )
    if opened := assignment["open"]:
        forms = rules.WITHIN_QUOTED if len(opened) > 1 else rules.QUOTED
        pattern = forms[opened[-1:]]
    else:
        pattern = rules.ENV_VALUE if is_env else rules.BARE
    end = _end_of_value(data, start, pattern, ends)
    # A quoted value of that length is a document; secrets inside it are found by their form.
    if end == start or (opened and end >= start + _LONGEST_VALUE):
        return None
    if pattern is rules.BARE and data[end : end + 1] in (b"(", b"["):
        # A function call: this is program code, and the secret itself is not in the text.
        return None
    return start, end, is_env


def _end_of_value(data: bytes, start: int, pattern: re.Pattern[bytes], ends: Ends) -> int:
    """Return the end of a value. Nested values end together, so no text is scanned twice."""
    begin, end = ends.get(pattern, (0, 0))
    if not begin <= start < end:
        found = pattern.match(data, start)
        end = found.end() if found else start
        ends[pattern] = (start, end)
    return end


def named_secret(name: str, value: str) -> str | None:
    """Return the kind of secret that a JSON object holds under a name; None if the value is no secret."""
    kind = _kind_named(name[-_LONGEST_NAME:].encode("utf-8", "surrogatepass"))
    if kind is None or len(value) >= _LONGEST_VALUE:
        return None
    return (
        kind if judged.is_secret(value.encode("utf-8", "surrogatepass"), kind, is_env=False, is_quoted=True) else None
    )
