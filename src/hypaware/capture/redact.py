"""Redaction: what the door lets into a record, and secrets in content, replaced by `[<kind>:<8 hex of sha256>]`.

At the door nothing is recorded that is not listed: of headers and query parameters that are not, the value is masked,
and so is every one whose name speaks of a secret. A masked value keeps at most its last four characters, and only if
it is longer than sixteen.

In content, secrets are found by rules (`secrets_rules`). The same secret has the same marker everywhere, so that two
uses of one key can still be told to be the same. Redacting what was redacted changes nothing, and canonical JSON stays
canonical JSON. Counts say how often each rule spoke, never what it saw.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hypaware.capture import secrets_rules
from hypaware.capture.secrets_find import Span, find, named_secret
from hypaware.capture.secrets_headers import header_named
from hypaware.model import canonical
from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset

MASK = "***"
_MOST_ROUNDS = 16
_MARKER = re.compile(rb"\[(?:" + "|".join(secrets_rules.KINDS).encode() + rb"):[0-9a-f]{8}\]")

_SPEAKS_OF_SECRETS = re.compile(r"token|secret|passw|credential|session-?key")
# fmt: off
_ALWAYS_MASKED = frozenset((
    "authorization", "proxy-authorization", "x-api-key", "anthropic-api-key", "x-goog-api-key", "api-key",
    "cookie", "set-cookie", "chatgpt-account-id",
))
_RECORDED_HEADERS = frozenset((
    # Of any exchange.
    "accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding",
    "content-length", "content-type", "date", "expect", "host", "retry-after", "server", "transfer-encoding",
    "upgrade", "user-agent", "vary", "via", "x-should-retry",
    # Who is calling, and for which session.
    "conversation_id", "originator", "session-id", "session_id", "thread-id", "version", "x-app",
    "x-claude-code-agent-id", "x-claude-code-session-id", "x-client-request-id", "x-codex-beta-features",
    "x-codex-parent-thread-id", "x-codex-turn-metadata", "x-codex-window-id", "x-hyp-dev-run-id",
    "x-openai-subagent",
    # What was asked for, and which answer it was.
    "anthropic-beta", "anthropic-version", "cf-ray", "openai-beta", "openai-model", "openai-processing-ms",
    "openai-version", "request-id", "x-oai-request-id", "x-request-id",
))
# fmt: on
_RECORDED_FAMILIES = ("anthropic-ratelimit-", "x-ratelimit-", "x-stainless-")
_HEADER_NAME = re.compile(r"[a-z0-9_.-]{1,64}")

_RECORDED_PARAMETERS = {
    "alt": re.compile("sse|json|media"),
    "api-version": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-preview)?|v[0-9]{1,2}"),
    "beta": re.compile("true|false"),
    "limit": re.compile("[0-9]{1,6}"),
    "stream": re.compile("true|false"),
}
_PARAMETER_NAME = re.compile(r"[A-Za-z][A-Za-z_.-]{0,31}")


def masked(value: str) -> str:
    return MASK + (value[-4:] if len(value) > 16 else "")


def redact_headers(headers: Iterable[tuple[str, str]] | Mapping[str, str]) -> dict[str, str]:
    """Names in lower case, several of one name joined by commas."""
    found: dict[str, list[str]] = {}
    for written, value in headers.items() if isinstance(headers, Mapping) else headers:
        name = written.lower()
        if not _HEADER_NAME.fullmatch(name):
            # Whatever somebody put there is not the name of anything.
            continue
        found.setdefault(name, []).append(redact_text(value)[0] if _is_recorded(name) else masked(value))
    return {name: ", ".join(values) for name, values in found.items()}


def _is_recorded(name: str) -> bool:
    if name in _ALWAYS_MASKED or _SPEAKS_OF_SECRETS.search(name):
        return False
    return name in _RECORDED_HEADERS or name.startswith(_RECORDED_FAMILIES)


def redact_query(target: str) -> tuple[str, str]:
    """The path of a request's target without its query, and the query with its values redacted."""
    path, _, query = target.partition("#")[0].partition("?")
    parameters = [_parameter(each) for each in re.split("[&;]", query)] if query else []
    return redact_text(path)[0], "&".join(parameters)


def _parameter(written: str) -> str:
    name, sign, value = written.partition("=")
    if not sign:
        return masked(written)
    if not _PARAMETER_NAME.fullmatch(name) or redact_text(name)[1]:
        name = MASK
    allowed = _RECORDED_PARAMETERS.get(name)
    return f"{name}={value if allowed and allowed.fullmatch(value) else masked(value)}"


def redact_text(text: str, rules_off: Collection[str] = ()) -> tuple[str, Counter[str]]:
    counts: Counter[str] = Counter()
    if not text:
        return text, counts
    data = text.encode("utf-8", "surrogatepass")
    off = frozenset(rules_off)
    # What stood beside a secret may be one by itself now: until nothing more is found. It is once, seldom twice.
    for _ in range(_MOST_ROUNDS):
        if not (found := _found(data, off)):
            break
        counts.update(span.kind for span in found)
        data = _replaced(data, found)
    return (data.decode("utf-8", "surrogatepass") if counts else text), counts


def _found(data: bytes, off: frozenset[str]) -> list[Span]:
    """Markers that stand there already are never looked into."""
    found: list[Span] = []
    begin = 0
    for marker in _MARKER.finditer(data) if b"[" in data else ():
        found += _moved(find(data[begin : marker.start()], off), begin)
        begin = marker.end()
    return found + _moved(find(data[begin:] if begin else data, off), begin)


def _moved(spans: list[Span], by: int) -> list[Span]:
    return [Span(span.start + by, span.end + by, span.kind) for span in spans] if by else spans


def _replaced(data: bytes, spans: list[Span]) -> bytes:
    pieces: list[bytes] = []
    begin = 0
    for span in spans:
        pieces += (data[begin : span.start], _marker(span.kind, data[span.start : span.end]))
        begin = span.end
    pieces.append(data[begin:])
    return b"".join(pieces)


def _marker(kind: str, secret: bytes) -> bytes:
    return f"[{kind}:{hashlib.sha256(secret).hexdigest()[:8]}]".encode()


def redact_json(value: Any, rules_off: Collection[str] = ()) -> tuple[Any, Counter[str]]:
    """Keys and texts of a JSON value; what an object has under a name such as `password` counts as well."""
    counts: Counter[str] = Counter()
    while True:
        found: Counter[str] = Counter()
        value = _walked(value, frozenset(rules_off), found)
        if not found:
            return value, counts
        counts.update(found)


def _walked(value: Any, off: frozenset[str], counts: Counter[str]) -> Any:
    return rebuilt(
        value, lambda text: _text(text, off, counts), lambda name, text: _member_text(name, text, off, counts)
    )


def rebuilt(value: Any, text: Callable[[str], str], member: Callable[[str, str], str]) -> Any:
    """A copy of a JSON value: `text` makes its texts and keys, `member` the texts that an object has under a name.

    However deeply it is nested: a client may send what no recursion comes through.
    """
    whole: list[Any] = [value]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]
    while waiting:
        holder, place = waiting.pop()
        item = holder[place]
        if isinstance(item, str):
            holder[place] = text(item)
        elif isinstance(item, list | tuple):
            holder[place] = copied = list(item)
            waiting.extend((copied, index) for index in range(len(copied)))
        elif isinstance(item, Mapping):
            holder[place] = named = {}
            for name, each in item.items():
                now = text(name)
                named[now] = member(name, each) if isinstance(each, str) else each
                if not isinstance(each, str):
                    waiting.append((named, now))
    return whole[0]


def _text(text: str, off: frozenset[str], counts: Counter[str]) -> str:
    redacted, found = redact_text(text, off)
    counts.update(found)
    return redacted


def _member_text(name: str, value: str, off: frozenset[str], counts: Counter[str]) -> str:
    if (kind := named_secret(name, value)) and kind not in off:
        secret = value.encode("utf-8", "surrogatepass")
        if _MARKER.fullmatch(secret):
            return value
        counts[kind] += 1
        return _marker(kind, secret).decode()
    if header := header_named(name):
        # Only the name says what the value is.
        begin = f"{header}: "
        return _text(begin + value, off, counts).removeprefix(begin)
    return _text(value, off, counts)


def redact_json_text(text: str, rules_off: Collection[str] = ()) -> tuple[str, Counter[str]]:
    """JSON stays JSON, canonical stays canonical; what is none, or is too deep for it, is redacted as text."""
    as_text, counts = redact_text(text, rules_off)
    if not counts:
        return text, counts
    try:
        redacted, found = redact_json(canonical.parse(text), rules_off)
        # Or it was seen across the borders of its values only, such as a name in one and a sign in the next.
        return (canonical.text(redacted) if found else text), found
    except ValueError:
        return as_text, counts


def redact_row(
    dataset: Dataset, row: Mapping[str, Any], rules_off: Collection[str] = ()
) -> tuple[dict[str, Any], Counter[str]]:
    """A row for others to have. What identifies it stays: else nobody could tell it from another."""
    counts: Counter[str] = Counter()
    redacted = dict(row)
    for name, by in columns_with_text(dataset).items():
        value = row.get(name)
        if isinstance(value, str):
            redacted[name], found = by(value, rules_off)
        elif value is not None:
            redacted[name], found = redact_json(value, rules_off)
        else:
            continue
        counts.update(found)
    return redacted, counts


def columns_with_text(dataset: Dataset) -> dict[str, Any]:
    """The columns that may hold a secret, each with the function that redacts its text."""
    kept = {dataset.key_column, *dataset.key_parts, *dataset.source_columns}
    forms = {Type.STRING: redact_text, Type.JSON: redact_json_text}
    return {each.name: forms[each.type] for each in dataset.columns if each.type in forms and each.name not in kept}
