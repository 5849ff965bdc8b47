"""What every format says about a session, a turn and a subagent: counts, tokens, dollars, and how to resume it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from hypaware.index.conversation import Thread
from hypaware.render.outline import TurnEnd
from hypaware.text import format_count, format_duration

_TOKEN_NAMES = {"input": "in", "output": "out", "cache_read": "cache read", "cache_write": "cache write"}
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_PLAIN = re.compile(r"[\x20-\x7e\xa0-\u0603\u061d-\u1fff\u2030-\u205f\u2070-\ud7ff\ue000-\ufefe\uff00-\U0010ffff]*")


def list_facts(session: Mapping[str, Any], zone: tzinfo) -> list[str]:
    """Return where and when the session was, for a line below its title."""
    times = [to_local(each, zone) for each in (session["started_at"], session["ended_at"]) if each]
    shown = [f"{times[0]:%Y-%m-%d %H:%M}"] if times else []
    if len(times) == 2 and times[1] > times[0]:
        end = "%H:%M" if times[0].date() == times[1].date() else "%Y-%m-%d %H:%M"
        shown = [f"{shown[0]} to {times[1]:{end}}"]
    facts = [session["client"], session["project"], session["branch"], *session["models"], *shown]
    return [fact for fact in facts if fact]


def list_totals(session: Mapping[str, Any], threads: Sequence[Thread]) -> Iterator[str]:
    """Yield the lines of totals: counts, tokens, and the cost with the share of the subagents."""
    agents = [each for each in threads if each.is_sidechain]
    counts = [format_count(session["turns"], "turn"), format_count(session["tool_calls"], "tool call")]
    if session["errors"]:
        counts.append(format_count(session["errors"], "error"))
    if agents:
        counts.append(format_count(len(agents), "subagent"))
    if session["started_at"] and session["ended_at"]:
        ended, started = (datetime.fromisoformat(session[name]) for name in ("ended_at", "started_at"))
        counts.append(format_duration((ended - started).total_seconds()))
    yield ", ".join(counts)
    if tokens := format_tokens(session["tokens"]):
        yield tokens
    if session["cost_usd"] is not None:
        shares = [each.cost_usd for each in agents if each.cost_usd is not None]
        share = f", subagents {format_dollars(sum(shares))}" if shares else ""
        yield f"{format_dollars(session['cost_usd'])}{share}"
    if session["unpriced_models"]:
        yield f"no price is known for {', '.join(session['unpriced_models'])}"


def describe_turn(turn: TurnEnd) -> str:
    facts = [format_count(turn.calls, "tool call")] if turn.calls else []
    if turn.errors:
        facts.append(format_count(turn.errors, "error"))
    if turn.seconds >= 1:
        facts.append(format_duration(turn.seconds))
    return ", ".join(filter(None, [*facts, describe_usage(turn.tokens, turn.cost_usd)]))


def describe_usage(tokens: Mapping[str, int], cost_usd: float | None) -> str:
    dollars = None if cost_usd is None else format_dollars(cost_usd)
    return ", ".join(filter(None, [format_tokens(tokens), dollars]))


def find_main(threads: Sequence[Thread]) -> str | None:
    """Return the client's id of the main thread."""
    return next((each.name for each in threads if not each.is_sidechain), None)


def to_local(text: str, zone: tzinfo) -> datetime:
    return datetime.fromisoformat(text).astimezone(zone)


def format_tokens(tokens: Mapping[str, int]) -> str:
    """Return the counts that are not zero: 33 in, 520 out, 121k cache read."""
    counts = [f"{format_short(tokens[name])} {shown}" for name, shown in _TOKEN_NAMES.items() if tokens.get(name)]
    return ", ".join(counts)


def format_short(value: int) -> str:
    """Format a number with two or three digits and a unit: 999, 1.2k, 35k, 4.1M."""
    size = float(value)
    for unit in ("", "k", "M", "G", "T"):
        if abs(size) < 999.5:
            return f"{size:.0f}{unit}" if not unit or abs(size) >= 9.95 else f"{size:.1f}{unit}"
        size /= 1000
    return f"{size:,.0f}P"


def format_dollars(amount: float) -> str:
    """Format an amount with cents, or with two digits if it is less than a cent."""
    if 0 < amount < 0.01:
        return f"${amount:.2g}" if amount >= 0.0001 else "<$0.0001"
    return f"${amount:,.2f}"


def resume_command(session: Mapping[str, Any], thread: str | None) -> str | None:
    """Return the shell command that resumes the session in its client, or None if it has none."""
    # Imported when the end of a conversation is shown: its beginning must not wait for that.
    from hypaware import plugins
    from hypaware.clients.client import Client

    client = plugins.find_declaration(plugins.CLIENTS, session["client"] or "", Client)
    resume = client.resume if client is not None else None
    name = (thread if resume is not None and resume.by_thread else None) or session["session_id"]
    if resume is None or not _SESSION_ID.fullmatch(name):
        return None
    command, cwd = " ".join((*resume.words, name)), session["cwd"]
    return f"cd {quote(cwd)} && {command}" if resume.in_folder and cwd and cwd.startswith("/") else command


def quote(word: str) -> str:
    """Quote a word for a shell, in printable characters only."""
    if _PLAIN.fullmatch(word):
        return shlex.quote(word)
    escaped = "".join(
        char if char.isascii() and char.isprintable() and char not in "\\'" else _escape_bytes(char) for char in word
    )
    return f"$'{escaped}'"


def _escape_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
