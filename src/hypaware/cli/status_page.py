"""The printed page of `hyp status`: a line per topic, then each problem with the command that fixes it.

Rendering is a pure function of the document, the time and the terminal's abilities. Stored text is escaped here, before
colours, which are terminal escapes themselves, are added.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

import click

from hypaware.status import words
from hypaware.terminal import harmless_cell

_LABEL = 10
_MAX_SOURCES = 6
_COLOURS = {"ok": "green", "degraded": "yellow", "down": "red", "error": "red", "warning": "yellow", "info": "cyan"}
_SEVERITY_LABELS = {"info": "note"}

Facts = dict[str, Any]


@dataclass(frozen=True)
class Look:
    width: int | None = None
    """Columns of the terminal; None means unlimited."""
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Look:
        if not stream.isatty():
            return cls()
        return cls(shutil.get_terminal_size().columns, "NO_COLOR" not in os.environ)


def draw(document: Facts, now: datetime, look: Look) -> list[str]:
    diagnostics = document["diagnostics"]
    lines = [_head(document, look)]
    if not any(each["kind"] == "not_set_up" for each in diagnostics):
        for label, text in _facts(document, now):
            lines += _wrapped(label, harmless_cell(text), look)
    for each in diagnostics:
        label = _SEVERITY_LABELS.get(each["severity"], each["severity"])
        lines += ["", *_wrapped(label, harmless_cell(each["message"]), look)]
        lines += [f"{'':<{_LABEL + 2}}{_styled(harmless_cell(command), look, bold=True)}" for command in each["repair"]]
    return lines


def _head(document: Facts, look: Look) -> str:
    overall = document["overall"]
    problems = sum(each["severity"] != "info" for each in document["diagnostics"])
    text = {
        "ok": "everything is working",
        "degraded": f"{words.count(problems, 'problem')} found",
        "down": "nothing is recorded automatically",
    }[overall]
    home = harmless_cell(str(document["home"].get("path")))
    return f"{_styled(overall, look, fg=_COLOURS[overall], bold=True)}: {text} ({home})"


def _facts(document: Facts, now: datetime) -> Iterator[tuple[str, str]]:
    is_relocated = document["home"].get("whereabouts") in ("moved", "copied")
    yield "recorded", "unknown until the moved home is opened" if is_relocated else _recorded(document["lake"])
    yield "pending", _pending(document["spool"], now)
    yield "live", _live(document["clients"], now)
    yield "daemon", _daemon(document, now)
    if (server := document["server"]).get("state") == "running":
        address = f", listening on {server['listen']}" if server["listen"] else ""
        yield "server", f"running as process {server['pid']}{address}"
    for sink in document["sinks"]:
        if sink["status"] != "removed":
            yield "delivered", f"{sink['sink']}: {_delivered(sink, now)}"
    yield "retention", _retention(document["retention"])
    if disk := document["disk"]:
        used = disk["lake_bytes"] + disk["spool_bytes"] + disk["state_bytes"]
        yield "disk", f"{words.size(used)} used, {words.size(disk['free_bytes'])} free"


def _recorded(lake: Sequence[Facts]) -> str:
    """Describe each dataset: rows, days, size and largest sources."""
    if not any(each["rows"] for each in lake):
        return "nothing yet"
    by_dataset: dict[str, list[Facts]] = {}
    for each in lake:
        by_dataset.setdefault(each["dataset"], []).append(each)
    return "; ".join(_dataset_text(name, each, show_name=len(by_dataset) > 1) for name, each in by_dataset.items())


def _dataset_text(name: str, sources: list[Facts], *, show_name: bool) -> str:
    days = sorted(day for each in sources for day in (each["oldest"], each["newest"]) if day)
    total, size = sum(each["rows"] for each in sources), sum(each["bytes"] for each in sources)
    text = f"{words.count(total, 'row')}"
    if days:
        text += f" from {days[0]} to {days[-1]}" if days[0] != days[-1] else f" from {days[0]}"
    largest = sorted(sources, key=lambda each: -each["rows"])
    shown = [f"{each['source']} {each['rows']:,}" for each in largest[:_MAX_SOURCES]]
    if len(largest) > _MAX_SOURCES:
        shown.append(f"{len(largest) - _MAX_SOURCES:,} more")
    return f"{name + ': ' if show_name else ''}{text}, {words.size(size)} ({', '.join(shown)})"


def _pending(spool: Facts, now: datetime) -> str:
    if not spool["segments"]:
        return "nothing"
    since = f", the oldest {words.ago(spool['oldest_at'], now)}" if spool["oldest_at"] else ""
    return f"{words.count(spool['rows'], 'row')} in the spool{since}"


def _live(clients: Sequence[Facts], now: datetime) -> str:
    shown = [f"{each['client']} {_client_text(each, now)}" for each in clients if each["installed"]]
    return ", ".join(shown) or "no client is installed"


def _client_text(client: Facts, now: datetime) -> str:
    state = client["state"]
    if state == "recording":
        return f"is recording, last seen {words.ago(client['last_seen_at'], now)}"
    return {
        "detached": "is not attached",
        "attached": "is attached, not seen yet",
        "passing": "is attached but not recorded",
        "broken": "cannot reach the gateway",
        "changed": "no longer points to the gateway",
    }.get(str(state), "state unknown")


def _daemon(document: Facts, now: datetime) -> str:
    daemon = document["daemon"]
    if daemon.get("state") != "running":
        return "not running"
    text = f"running as process {daemon.get('pid')}"
    if daemon.get("started_at"):
        text += f", started {words.ago(daemon['started_at'], now)}"
    gateway: Facts = next((each for each in document["sources"] if each.get("kind") == "live"), {})
    if gateway.get("state") == "listening":
        text += f", gateway on {gateway['listen']}: {words.count(gateway['exchanges'], 'exchange')}"
    return text


def _delivered(sink: Facts, now: datetime) -> str:
    delivered = words.count(sink["exported_rows"], "row")
    last = f", last {words.ago(sink['last_success_at'], now)}" if sink["last_success_at"] else ""
    behind = f"{'' if sink['lag_exact'] else 'up to '}{words.count(sink['lag_rows'], 'row')}"
    if sink["status"] == "delivered":
        return f"everything ({delivered}{last})" if sink["streams"] else "nothing to deliver yet"
    if sink["status"] == "behind":
        return f"{delivered}{last}; {behind} pending"
    return f"{sink['status']}; {behind} pending ({delivered} so far{last})"


def _retention(retention: Facts) -> str:
    def span(days: int) -> str:
        return words.count(days, "day") if days else "forever"

    if not retention:
        return "unknown"
    default = retention["default_days"]
    others = [each for each in retention["datasets"] if each["days"] != default]
    held = sum(each["rows_held"] for each in retention["datasets"])
    text = "; ".join([span(default), *(f"{each['dataset']} {span(each['days'])}" for each in others)])
    return f"{text}; {words.count(held, 'row')} held longer for sinks" if held else text


def _wrapped(label: str, text: str, look: Look) -> list[str]:
    severity = next((name for name, shown in _SEVERITY_LABELS.items() if shown == label), label)
    head = _styled(f"{label:<{_LABEL}}", look, fg=_COLOURS[severity]) if severity in _COLOURS else f"{label:<{_LABEL}}"
    room = None if look.width is None else max(20, look.width - _LABEL - 1)
    first, *rest = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if room else [text]
    return [f"{head} {first}", *(f"{'':<{_LABEL}} {line}" for line in rest)]


def _styled(text: str, look: Look, **style: Any) -> str:
    return click.style(text, **style) if look.colours else text
