"""The gateway: who answers where clients call, what passed, and what became of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hypaware.clients import standing
from hypaware.home import Home
from hypaware.listen_address import free_beside
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, info, warning
from hypaware.status.view import View
from hypaware.status.within import within

_CONNECT_SECONDS = 0.3
_SECONDS = 1.5
_SHOWN_NAMES = 3


def look(view: View, wanted: bool) -> Found[dict[str, Any]]:
    """`wanted`: whether anybody calls it. Else nobody is asked, and nothing is said."""
    told = view.of_daemon("gateway")
    listen = told.get("listen") or view.config.gateway.listen
    answers = who_answers(view.home, listen) if wanted or told.get("state") in ("listening", "down") else None
    facts = {
        "source": "gateway",
        "kind": "live",
        "listen": listen,
        "state": told.get("state") or _untold(view, wanted),
        "answered_by": answers,
        "error": told.get("error"),
        "since": told.get("since"),
        **{
            name: _number(told, name)
            for name in ("exchanges", "recorded", "incomplete", "dropped", "ignored", "rejected_rows")
        },
        **{name: _counts(told.get(name)) for name in ("unknown", "without_row")},
        "last_exchange_at": told.get("last_exchange_at"),
    }
    return Found(facts, (*_of_listening(view, facts, wanted), *_of_traffic(facts)))


def _untold(view: View, wanted: bool) -> str:
    """Its state where the daemon does not say it: it does not run, or has not come to it yet."""
    if view.runs:
        return "unknown"
    return "down" if wanted else "off"


def who_answers(home: Home, listen: str) -> str | None:
    """gateway, fallback, a stranger, or None."""
    host, _, port = listen.rpartition(":")
    reached = "127.0.0.1" if host in ("", "0.0.0.0", "[::]", "localhost") else host.strip("[]")
    with suppress(OSError, ValueError):
        socket.create_connection((reached, int(port)), timeout=_CONNECT_SECONDS).close()
        shown = f"[{reached}]" if ":" in reached else reached
        with suppress(TimeoutError):
            return within(_SECONDS, lambda: standing.asked(home, f"http://{shown}:{port}")) or "stranger"
        return "stranger"
    return None


def _of_listening(view: View, facts: Mapping[str, Any], wanted: bool) -> Iterator[Diagnostic]:
    listen, down = facts["listen"], facts["state"] == "down"
    if facts["answered_by"] == "stranger" and (down or wanted):
        yield error(
            "port_taken",
            f"another program listens at {listen}, where clients would find the gateway",
            f"hyp config set gateway.listen {free_beside(listen)}",
            "hyp client attach",
        )
    elif view.runs and down:
        why = facts["error"] or "it does not say why"
        yield error(
            "gateway_down",
            f"the gateway does not listen at {listen}: {why}",
            "hyp daemon restart",
            "hyp doctor",
        )


def _of_traffic(facts: Mapping[str, Any]) -> Iterator[Diagnostic]:
    if facts["dropped"]:
        what = words.count(facts["dropped"], "exchange was", "exchanges were")
        yield warning(
            "records_dropped", f"{what} not recorded since the daemon began: they came faster than they could be kept",
            "hyp backfill",
        )  # fmt: skip
    if facts["unknown"]:
        total, shown = _most_frequent(facts["unknown"])
        yield warning(
            "dialect_unknown",
            f"{words.count(total, 'exchange')} could not be understood ({shown}), and "
            f"{'is' if total == 1 else 'are'} kept raw for a version that can",
            "hyp reproject",
        )
    if facts["without_row"]:
        total, shown = _most_frequent(facts["without_row"])
        yield info(
            "live_items_without_row",
            f"{words.count(total, 'item')} of live conversations made no row, as an import makes none of "
            f"{'it' if total == 1 else 'them'} ({shown}); the raw exchanges hold {'it' if total == 1 else 'them'}",
        )
    if facts["rejected_rows"]:
        what = words.count(facts["rejected_rows"], "row")
        yield warning("live_rows_refused", f"{what} of live exchanges did not fit their dataset", "hyp doctor")
    if facts["ignored"]:
        what = words.count(facts["ignored"], "exchange was", "exchanges were")
        yield info("exchanges_ignored", f"{what} left out, as your folders and sessions ask for", "hyp session status")


def _counts(told: Any) -> dict[str, Any]:
    return {str(name): count for name, count in told.items()} if isinstance(told, Mapping) else {}


def _most_frequent(counts: Mapping[str, Any]) -> tuple[int, str]:
    """How many in all, and the names that most of them have."""
    names = sorted(counts, key=lambda name: -_number(counts, name))
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
    return sum(_number(counts, name) for name in names), shown


def _number(held: Mapping[str, Any], name: str) -> int:
    found = held.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
