"""The value types of settings: how each is parsed, written back, and described in an error message.

`read` raises ValueError for an invalid value, with a reason if the expected type alone does not explain it.

A schedule has five cron fields (minute, hour, day of month, month, day of week), in UTC. A field is `*`, a number, a
range `a-b`, a step `*/n` or `a-b/n`, or a comma-separated list of these. Weekdays are 0 to 7; both 0 and 7 are Sunday.
As in every cron, if neither day field is `*`, a day matches if either of them matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from hypaware.model.privacy_class import PRIVACY_CLASS_NAMES
from hypaware.text import did_you_mean

_DURATION = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)")
_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SIZE = re.compile(r"(\d{1,19})\s*([KMGT]I?B|B)", re.IGNORECASE)
_BYTES = {
    "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10,
    "TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1,
}  # fmt: skip
_BYTES_ANY_CASE = {unit.upper(): count for unit, count in _BYTES.items()}
_PERIOD = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")
_CRON_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_LAST_DAY = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_CRON_ITEM = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,4}))?")
CATALOG_TYPES = ("rest", "jdbc", "glue", "hive")
SECRET_RULES = (
    "anthropic-key", "openrouter-key", "openai-key", "groq-key", "xai-key", "perplexity-key", "replicate-key",
    "huggingface-token", "aws-key-id", "aws-bedrock-key", "gcp-key", "gcp-oauth-token", "gcp-oauth-secret",
    "github-token", "gitlab-token", "slack-token", "slack-webhook", "discord-webhook", "stripe-key", "npm-token",
    "pypi-token", "rubygems-key", "docker-token", "digitalocean-token", "databricks-token", "doppler-token",
    "vault-token", "shopify-token", "sendgrid-key", "mailgun-key", "twilio-key", "sentry-token", "grafana-token",
    "linear-key", "notion-token", "postman-key", "newrelic-key", "figma-token", "supabase-key", "planetscale-token",
    "fly-token", "netlify-token", "pulumi-token", "artifactory-key", "atlassian-token", "telegram-token", "age-key",
    "hypaware-token", "jwt", "bearer-token", "basic-credentials", "cookie", "azure-client-secret", "private-key",
    "url-password", "url-signature", "password", "assigned-secret",
)  # fmt: skip
"""The names of the rules that find secrets, for `redaction.rules_off`. `privacy.secret_rules` implements them."""


@dataclass(frozen=True)
class ValueType:
    expected: str
    """Completes the sentence "expected ..."."""
    example: str
    """An example value in TOML."""
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def integer(least: int) -> ValueType:
    def read(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw < 2**63:
            raise ValueError
        return raw

    return ValueType(f"an integer of at least {least}", str(max(least, 30)), read)


def one_of(*allowed: str) -> ValueType:
    def read(raw: Any) -> str:
        if raw not in allowed:
            raise ValueError(_suggestion(raw, allowed))
        return str(raw)

    return ValueType(f"one of {', '.join(allowed)}", f'"{allowed[0]}"', read)


def _suggestion(raw: Any, known: Iterable[str]) -> str:
    return did_you_mean(raw, known).strip() if isinstance(raw, str) else ""


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError
    if any(ord(char) < 0x20 for char in raw):
        raise ValueError("it contains a control character")
    return raw


def _non_empty(raw: Any) -> str:
    if not (value := _text(raw)).strip():
        raise ValueError("it is empty")
    return value


def _flag(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise ValueError
    return raw


def _matching(pattern: str) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        if not re.fullmatch(pattern, value := _text(raw)):
            raise ValueError
        return value

    return read


_name = _matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_host = _matching(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def _names(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        raise ValueError
    names = tuple(_name(item) for item in raw)
    if len(set(names)) < len(names):
        raise ValueError("a name is repeated")
    return names


def _duration(raw: Any) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raise ValueError("it has no unit")
    found = _DURATION.fullmatch(_text(raw).strip())
    if not found:
        raise ValueError
    seconds = int(found[1]) * _MILLISECONDS[found[2]] / 1000
    if not 0 < seconds <= 10 * 366 * 86400:
        raise ValueError("it must be greater than zero and at most ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that divides it."""
    count = round(seconds * 1000)
    return next(f"{count // size}{unit}" for unit, size in _MILLISECONDS.items() if count % size == 0)


def _moment(raw: Any) -> str:
    """Return a time as text with its zone. A date means its start; without a zone, UTC is assumed."""
    text = raw.isoformat() if isinstance(raw, date) else _text(raw).strip()
    if not text:
        return ""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _size(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        count = raw
    else:
        found = _SIZE.fullmatch(_text(raw).strip())
        if not found:
            raise ValueError
        count = int(found[1]) * _BYTES_ANY_CASE[found[2].upper()]
    if not 0 < count < 2**63:
        raise ValueError("it must be greater than zero")
    return count


def format_size(count: int) -> str:
    """Format a size in the largest unit that divides it, preferring binary units."""
    return next(f"{count // size}{unit}" for unit, size in _BYTES.items() if count % size == 0)


def _listen(raw: Any) -> str:
    value = _text(raw)
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError
    return value


def _loopback(raw: Any) -> str:
    value = _listen(raw)
    if value.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        raise ValueError("only this machine may reach it")
    return value


def _loopback_or_off(raw: Any) -> str:
    return _loopback(raw) if _text(raw) else ""


def _destination(raw: Any) -> str:
    value = _non_empty(raw)
    if "://" not in value and not value.strip().startswith(("/", "~")):
        raise ValueError("a relative path depends on the folder; write an absolute one")
    return value


def is_loopback(host: str) -> bool:
    """Return whether the name or address is this machine's, and other machines cannot reach it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hosts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple):
        raise ValueError
    return tuple(_host(item).lower() for item in raw)


def _url(raw: Any) -> str:
    parts = urlsplit(value := _non_empty(raw))
    if parts.scheme not in ("http", "https") or not parts.hostname or any(char.isspace() for char in value):
        raise ValueError
    if parts.username is not None:
        raise ValueError("it has a user name")
    if parts.query or parts.fragment:
        raise ValueError("it has a query or a fragment")
    return value.rstrip("/")


def _server_url(raw: Any) -> str:
    if urlsplit(value := _url(raw)).path.endswith("/v1"):
        raise ValueError("write it without /v1")
    return value


@dataclass(frozen=True)
class DailyPeriod:
    begin: time
    end: time
    """The period ends just before this time."""

    def contains(self, moment: time) -> bool:
        if self.begin <= self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


def parse_period(text: str) -> DailyPeriod:
    """Parse a period such as `22:00-07:00`. Raise ValueError if it is invalid."""
    match = _PERIOD.fullmatch(text)
    if not match:
        raise ValueError
    begin, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    if begin == end:
        raise ValueError("it begins and ends at the same time")
    return DailyPeriod(begin, end)


def _period(raw: Any) -> str:
    return str(parse_period(text)) if (text := _text(raw).strip()) else ""


def check_schedule(raw: Any) -> str:
    """Raise ValueError, with the invalid field and the reason, unless the schedule is valid."""
    fields = (schedule := _text(raw)).split(" ")
    if len(fields) != len(_CRON_FIELDS):
        raise ValueError(f"it has {len(fields)} fields; expected 5, separated by single spaces")
    _minutes, _hours, days, months, _weekdays = (
        _cron_values(field, *limits) for field, limits in zip(fields, _CRON_FIELDS, strict=True)
    )
    if fields[4] == "*" and all(min(days) > _LAST_DAY.get(month, 31) for month in months):
        raise ValueError("no date matches it")
    return schedule


def _cron_values(field: str, name: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in field.split(","):
        match = _CRON_ITEM.fullmatch(item)
        if not match:
            raise ValueError(f"{item!r} is not a {name}")
        first, last, step = match.groups()
        if step is not None and first is not None and last is None:
            raise ValueError(f"the step in {item!r} needs a range, such as */{step} or {first}-{high}/{step}")
        start = int(first) if first else low
        end = int(last or first) if first else high
        if not low <= start <= end <= high:
            raise ValueError(f"{item!r} is not a {name} from {low} to {high}")
        if step is not None and int(step) == 0:
            raise ValueError(f"the step in {item!r} is 0")
        values.update(range(start, end + 1, int(step or 1)))
    return values


def _rules(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not all(isinstance(item, str) for item in raw):
        raise ValueError
    for item in raw:
        if item not in SECRET_RULES:
            raise ValueError(f"unknown rule {item!r}. {_suggestion(item, SECRET_RULES)}")
    if len(set(raw)) < len(raw):
        raise ValueError("a name is repeated")
    return tuple(raw)


def _shared_catalog(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise ValueError
    if raw.get("type") not in CATALOG_TYPES:
        raise ValueError(f"its type must be one of {', '.join(CATALOG_TYPES)}")
    if raw["type"] != "glue" and not raw.get("uri"):
        raise ValueError("it has no uri")
    properties = {}
    for key, value in raw.items():
        if not isinstance(value, str | int | float):
            raise ValueError(f"its property {key} must be text, a number, true or false")
        properties[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return properties


def _shared_state(raw: Any) -> dict[str, str]:
    """Read the address of a PostgreSQL database. Its password is in an environment variable."""
    if not isinstance(raw, Mapping):
        raise ValueError
    for key, value in raw.items():
        if key not in _STATE_KEYS:
            raise ValueError(f"it has an unknown key {key!r}. {_suggestion(key, _STATE_KEYS)}".strip())
        _non_empty(value)
    parts = urlsplit(raw.get("uri", ""))
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname or not parts.path.strip("/"):
        raise ValueError("its uri must be postgresql://host:port/database")
    if parts.username is not None:
        raise ValueError("its uri has a user name; write it as user")
    return dict(raw)


def _endpoint(raw: Any) -> str:
    return _url(raw) if raw != "" else ""


_STATE_KEYS = ("uri", "user", "password_env")
_STATE_EXAMPLE = '{ uri = "postgresql://db.example:5432/hypaware", user = "hyp", password_env = "STATE_PASSWORD" }'
_CATALOG_EXAMPLE = '{ type = "rest", uri = "https://catalog.example" }'
TEXT = ValueType("text in quotes", '"text"', _text)
NON_EMPTY = ValueType("text in quotes", '"text"', _non_empty)
DESTINATION = ValueType("a folder's absolute path or an address", '"s3://bucket/prefix"', _destination)
FLAG = ValueType("true or false", "true", _flag)
DURATION = ValueType("a duration in ms, s, m, h or d", '"15m"', _duration, format_duration)
DURATION_OR_OFF = ValueType(
    'a duration in ms, s, m, h or d, or "off"',
    '"1h"',
    lambda raw: 0.0 if raw in ("off", "0") or (type(raw) is int and raw == 0) else _duration(raw),
    lambda value: format_duration(value) if value else "off",
)
MOMENT = ValueType("a date or a time, or empty", '"2026-11-15T08:00:00Z"', _moment)
PERIOD = ValueType("a daily period, or empty", '"22:00-07:00"', _period)
SIZE = ValueType("a number of bytes", '"128MiB"', _size, format_size)
MEMORY = ValueType("an amount of memory in k, m, g or t", '"1g"', _matching(r"(?i)[1-9]\d*[kmgt]"))
LISTEN = ValueType("an address and a port", '"127.0.0.1:18521"', _listen)
LOOPBACK = ValueType("127.0.0.1, localhost or [::1], and a port", '"127.0.0.1:4177"', _loopback)
LOOPBACK_OR_OFF = ValueType("127.0.0.1, localhost or [::1], and a port, or empty", '"127.0.0.1:4318"', _loopback_or_off)
HOSTS = ValueType("a list of host names or addresses", '["192.0.2.7"]', _hosts, list)
ENDPOINT = ValueType("an http or https address, or empty", '"https://s3.example"', _endpoint)
URL = ValueType("an http or https address", '"https://api.example"', _url)
SERVER_URL = ValueType("the server's http or https address", '"https://host.example"', _server_url)
PREFIX = ValueType("a path that starts with /", '"/v1"', _matching("/.*"))
NAME = ValueType("a name made of letters, digits, _ and -", '"anthropic"', _name)
NAMES = ValueType("a list of dataset names", '["ai_gateway_messages"]', _names, list)
SECRET_RULE_NAMES = ValueType("a list of rule names", '["password"]', _rules, list)
PRIVACY_CLASS = one_of(*PRIVACY_CLASS_NAMES)
SCHEDULE = ValueType("five cron fields (minute, hour, day, month, weekday; UTC)", '"*/5 * * * *"', check_schedule)
CATALOG = ValueType("a table with the catalog's type and uri", _CATALOG_EXAMPLE, _shared_catalog, dict)
LAKE_CATALOG = ValueType(
    '"embedded", or a table with the catalog\'s type and uri',
    f'"embedded" or {_CATALOG_EXAMPLE}',
    lambda raw: "embedded" if raw == "embedded" else _shared_catalog(raw),
    lambda value: value if isinstance(value, str) else dict(value),
)
LAKE_STATE = ValueType(
    '"embedded", or a table with the uri of a PostgreSQL database',
    f'"embedded" or {_STATE_EXAMPLE}',
    lambda raw: "embedded" if raw == "embedded" else _shared_state(raw),
    lambda value: value if isinstance(value, str) else dict(value),
)
