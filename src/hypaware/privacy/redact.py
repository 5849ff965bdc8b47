"""Redaction: allow-lists for headers and query parameters, markers `[<kind>:<12 hex digits>]` for secrets in text.

Only listed headers and query parameters are recorded. The values of all others are masked, and so is every value whose
name suggests a secret. A masked value keeps at most its last four characters, and only if it is longer than sixteen.

In content, the rules of `secret_rules` find secrets. The digits of a marker are an HMAC of the secret with the key of
the home, so that two uses of one key remain recognizable and no outsider can test guesses of a weak password. Markers
of earlier versions, with eight digits, stay. Redacting redacted text changes nothing, and canonical JSON stays
canonical. Counts say how often each rule matched, never what it found.

The key is `<HYP_HOME>/redaction.key`, 32 random bytes. It is created when it is first needed and durable before the
first marker is made with it, so a secret has the same marker in all rows of a home, and in its backups. It never leaves
the machine otherwise. If it is lost, a new one is created: later markers differ from the earlier ones.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypaware import faults
from hypaware.config.values import SECRET_RULES
from hypaware.errors import Retryable, StateError
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked
from hypaware.model import canonical
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import Dataset
from hypaware.privacy.secret_scanner import classify_member, find_secrets, match_secret_header

_before_write = faults.crash_point("privacy.marker-key.before-write", "the key of the markers does not exist yet")
_after_write = faults.crash_point("privacy.marker-key.after-write", "the key of the markers is durable and unused")
MASK = "***"
_DIGITS = 12
_KEY_BYTES = 32
_MAX_ROUNDS = 16
_MARKER = re.compile(rb"\[(?:" + "|".join(SECRET_RULES).encode() + rb"):[0-9a-f]{8}(?:[0-9a-f]{4})?\]")
_SECRET_NAME = re.compile(r"token|secret|passw|credential|session-?key")
# fmt: off
_ALWAYS_MASKED = frozenset((
    "authorization", "proxy-authorization", "x-api-key", "anthropic-api-key", "x-goog-api-key", "api-key",
    "cookie", "set-cookie", "chatgpt-account-id",
))
_RECORDED_HEADERS = frozenset((
    # Any exchange.
    "accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding",
    "content-length", "content-type", "date", "expect", "host", "retry-after", "server", "transfer-encoding",
    "upgrade", "user-agent", "vary", "via", "x-should-retry",
    # Who is calling, and for which session.
    "conversation_id", "originator", "session-id", "session_id", "thread-id", "version", "x-app",
    "x-client-request-id", "x-hyp-dev-run-id", "x-openai-subagent",
    # The request and its response.
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


@dataclass(frozen=True)
class Redaction:
    key: bytes
    """The key of the markers."""
    rules_off: frozenset[str] = frozenset()

    def build_marker(self, kind: str, secret: bytes) -> bytes:
        return f"[{kind}:{hmac.digest(self.key, secret, 'sha256').hex()[:_DIGITS]}]".encode()


def load_marker_key(home: Home, *, is_dry_run: bool = False) -> bytes:
    """Return the home's key. A dry run does not create a missing one: its markers are never stored."""
    path = home.root / "redaction.key"
    try:
        if not path.exists():
            if is_dry_run:
                return secrets.token_bytes(_KEY_BYTES)
            durable_files.make_dir(home.root)
            with locked(home.root):
                if not path.exists():
                    _before_write()
                    durable_files.write_atomic(path, secrets.token_bytes(_KEY_BYTES))
                    _after_write()
        key = path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read or written: {os.strerror(error.errno or 0)}"
        raise Retryable(problem, kind="redaction_key_unusable") from error
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{path} is damaged: it does not hold {_KEY_BYTES} bytes. Remove it; the next command creates a new key, "
            "and later markers differ from the earlier ones",
            kind="redaction_key_damaged",
            repair=f"rm {shlex.quote(str(path))}",
        )
    return key


def mask(value: str) -> str:
    return MASK + (value[-4:] if len(value) > 16 else "")


def redact_headers(
    headers: Iterable[tuple[str, str]] | Mapping[str, str], recorded: Collection[str] = ()
) -> dict[str, str]:
    """Redact header values; names become lower case, and values of a repeated name are joined by commas.

    `recorded` names headers, in lower case, whose values are kept besides those that every exchange may have.
    """
    found: dict[str, list[str]] = {}
    for written, value in headers.items() if isinstance(headers, Mapping) else headers:
        name = written.lower()
        if not _HEADER_NAME.fullmatch(name):
            continue
        is_secret = name in _ALWAYS_MASKED or _SECRET_NAME.search(name)
        is_listed = name in _RECORDED_HEADERS or name in recorded or name.startswith(_RECORDED_FAMILIES)
        found.setdefault(name, []).append(mask_secrets(value) if is_listed and not is_secret else mask(value))
    return {name: ", ".join(values) for name, values in found.items()}


def redact_query(target: str) -> tuple[str, str]:
    """Return the path of a request target, and its query with redacted values."""
    path, _, query = target.partition("#")[0].partition("?")
    parameters = [_redact_parameter(each) for each in re.split("[&;]", query)] if query else []
    return mask_secrets(path), "&".join(parameters)


def _redact_parameter(written: str) -> str:
    name, sign, value = written.partition("=")
    if not sign:
        return mask(written)
    if not _PARAMETER_NAME.fullmatch(name) or mask_secrets(name) != name:
        name = MASK
    allowed = _RECORDED_PARAMETERS.get(name)
    return f"{name}={value if allowed and allowed.fullmatch(value) else mask(value)}"


def mask_secrets(text: str) -> str:
    """Replace what looks like a secret by asterisks; for text that is shown and not stored."""
    data = text.encode("utf-8", "surrogatepass")
    for span in reversed(find_secrets(data)):
        data = data[: span.start] + MASK.encode() + data[span.end :]
    return data.decode("utf-8", "surrogatepass")


def redact_text(text: str, redaction: Redaction) -> tuple[str, Counter[str]]:
    counts: Counter[str] = Counter()
    if not text:
        return text, counts
    data = text.encode("utf-8", "surrogatepass")
    # Text next to a replaced secret may match a rule now, so repeat until nothing is found: once, rarely twice.
    for _ in range(_MAX_ROUNDS):
        redacted = _replace_secrets(data, redaction, counts)
        if redacted == data:
            break
        data = redacted
    return (data.decode("utf-8", "surrogatepass") if counts else text), counts


def _replace_secrets(data: bytes, redaction: Redaction, counts: Counter[str]) -> bytes:
    """Replace the secrets outside of existing markers."""
    pieces: list[bytes] = []
    start = copied = 0
    markers = [marker.span() for marker in _MARKER.finditer(data)] if b"[" in data else []
    for marker_start, marker_end in (*markers, (len(data), len(data))):
        for span in find_secrets(data[start:marker_start], redaction.rules_off):
            counts[span.kind] += 1
            begin, end = start + span.start, start + span.end
            pieces += (data[copied:begin], redaction.build_marker(span.kind, data[begin:end]))
            copied = end
        start = marker_end
    pieces.append(data[copied:])
    return b"".join(pieces)


def redact_json(value: Any, redaction: Redaction) -> tuple[Any, Counter[str]]:
    """Redact keys and strings of a JSON value; values under a key such as `password` count as well."""
    counts: Counter[str] = Counter()
    while True:
        found: Counter[str] = Counter()
        value = map_json(
            value,
            partial(_redact_string, redaction=redaction, counts=found),
            partial(_redact_member, redaction=redaction, counts=found),
        )
        if not found:
            return value, counts
        counts.update(found)


def map_json(value: Any, text: Callable[[str], str], member: Callable[[str, str], str]) -> Any:
    """Copy a JSON value; `text` maps its strings and keys, `member` the strings that have a name.

    The name is the key. In a pair such as `{"name": "DB_PASSWORD", "value": "x"}` it is the name there, and in a list
    of arguments the option before the string. It works at any nesting depth, because a client may send JSON that is
    too deep for recursion.
    """
    root: list[Any] = [value]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    while pending:
        holder, key = pending.pop()
        item = holder[key]
        if isinstance(item, str):
            holder[key] = text(item)
        elif isinstance(item, list | tuple):
            holder[key] = copied = list(item)
            for index, each in enumerate(item):
                option = item[index - 1] if index and isinstance(each, str) else None
                if isinstance(option, str) and option.startswith("-"):
                    copied[index] = member(option, each)
                else:
                    pending.append((copied, index))
        elif isinstance(item, Mapping):
            holder[key] = members = {}
            for name, each in item.items():
                new_name = text(name)
                if isinstance(each, str):
                    members[new_name] = member(_find_label(item) if name.lower() == "value" else name, each)
                else:
                    members[new_name] = each
                    pending.append((members, new_name))
    return root[0]


def _find_label(pair: Mapping[str, Any]) -> str:
    return next((each for key, each in pair.items() if key.lower() in ("name", "key") and isinstance(each, str)), "")


def _redact_string(text: str, redaction: Redaction, counts: Counter[str]) -> str:
    redacted, found = redact_text(text, redaction)
    counts.update(found)
    return redacted


def _redact_member(name: str, value: str, redaction: Redaction, counts: Counter[str]) -> str:
    if (kind := classify_member(name, value)) and kind not in redaction.rules_off:
        secret = value.encode("utf-8", "surrogatepass")
        if _MARKER.fullmatch(secret):
            return value
        counts[kind] += 1
        return redaction.build_marker(kind, secret).decode()
    if header := match_secret_header(name):
        # Only the name identifies the value.
        start = f"{header}: "
        return _redact_string(start + value, redaction, counts).removeprefix(start)
    return _redact_string(value, redaction, counts)


def redact_json_text(text: str, redaction: Redaction) -> tuple[str, Counter[str]]:
    """Redact JSON as JSON, so that canonical text stays canonical; redact anything else, or JSON too deep, as text."""
    as_text, counts = redact_text(text, redaction)
    if not counts:
        return text, counts
    try:
        redacted, found = redact_json(canonical.loads(text), redaction)
        # Or the match spanned several values, such as a name in one and a sign in the next.
        return (canonical.dumps(redacted) if found else text), found
    except ValueError:
        return as_text, counts


def redact_row(dataset: Dataset, row: Mapping[str, Any], redaction: Redaction) -> tuple[dict[str, Any], Counter[str]]:
    """Redact a row for delivery. Identifying columns stay, so that the row remains distinguishable."""
    counts: Counter[str] = Counter()
    redacted = dict(row)
    for name, redact in text_redactors(dataset).items():
        value = row.get(name)
        if isinstance(value, str):
            redacted[name], found = redact(value, redaction)
        elif value is not None:
            redacted[name], found = redact_json(value, redaction)
        else:
            continue
        counts.update(found)
    return redacted, counts


def text_redactors(dataset: Dataset) -> dict[str, Any]:
    """Return the columns that may hold a secret, each with the function that redacts its text."""
    kept = {dataset.key_column, *dataset.key_parts, *dataset.source_columns}
    redactors = {ColumnType.STRING: redact_text, ColumnType.JSON: redact_json_text}
    return {
        each.name: redactors[each.type] for each in dataset.columns if each.type in redactors and each.name not in kept
    }
