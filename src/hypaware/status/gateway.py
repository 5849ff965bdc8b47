"""The gateway: what answers at its address, and its traffic counts."""

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


def look(view: View, is_needed: bool) -> Found[dict[str, Any]]:
    """Return the gateway's facts. Unless `is_needed` or the daemon runs it, its address is not probed."""
    status = view.daemon_part("gateway")
    listen = status.get("listen") or view.config.gateway.listen
    answered_by = who_answers(view.home, listen) if is_needed or status.get("state") in ("listening", "down") else None
    facts = {
        "source": "gateway",
        "kind": "live",
        "listen": listen,
        "state": status.get("state") or _default_state(view, is_needed),
        "answered_by": answered_by,
        "error": status.get("error"),
        "since": status.get("since"),
        **{
            name: _number(status, name)
            for name in ("exchanges", "recorded", "incomplete", "dropped", "ignored", "rejected_rows")
        },
        **{name: _counts(status.get(name)) for name in ("unknown", "without_row")},
        "last_exchange_at": status.get("last_exchange_at"),
    }
    return Found(facts, (*_listen_diagnostics(view, facts, is_needed), *_traffic_diagnostics(facts)))


def _default_state(view: View, is_needed: bool) -> str:
    """Return the gateway's state if the daemon is not running or has not reported it yet."""
    if view.is_daemon_running:
        return "unknown"
    return "down" if is_needed else "off"


def who_answers(home: Home, listen: str) -> str | None:
    """Return what answers at the address: `gateway`, `fallback`, `stranger` or None."""
    host, _, port = listen.rpartition(":")
    address = "127.0.0.1" if host in ("", "0.0.0.0", "[::]", "localhost") else host.strip("[]")
    with suppress(OSError, ValueError):
        socket.create_connection((address, int(port)), timeout=_CONNECT_SECONDS).close()
        url_host = f"[{address}]" if ":" in address else address
        with suppress(TimeoutError):
            return within(_SECONDS, lambda: standing.asked(home, f"http://{url_host}:{port}")) or "stranger"
        return "stranger"
    return None


def _listen_diagnostics(view: View, facts: Mapping[str, Any], is_needed: bool) -> Iterator[Diagnostic]:
    listen, is_down = facts["listen"], facts["state"] == "down"
    if facts["answered_by"] == "stranger" and (is_down or is_needed):
        yield error(
            "port_taken",
            f"another program listens on {listen}, the gateway's address",
            f"hyp config set gateway.listen {free_beside(listen)}",
            "hyp client attach",
        )
    elif view.is_daemon_running and is_down:
        why = facts["error"] or "no reason is known"
        yield error(
            "gateway_down",
            f"the gateway does not listen on {listen}: {why}",
            "hyp daemon restart",
            "hyp doctor",
        )


def _traffic_diagnostics(facts: Mapping[str, Any]) -> Iterator[Diagnostic]:
    if facts["dropped"]:
        exchanges = words.count(facts["dropped"], "exchange was", "exchanges were")
        yield warning(
            "records_dropped",
            f"{exchanges} not recorded since the daemon started: they arrived faster than they could be written",
            "hyp backfill",
        )
    if facts["unknown"]:
        total, names = _most_frequent(facts["unknown"])
        yield warning(
            "dialect_unknown",
            f"{words.count(total, 'exchange')} could not be decoded ({names}); the raw "
            f"{'exchange is' if total == 1 else 'exchanges are'} kept for a version that can",
            "hyp reproject",
        )
    if facts["without_row"]:
        total, names = _most_frequent(facts["without_row"])
        yield info(
            "live_items_without_row",
            f"{words.count(total, 'item')} of live conversations produced no row, as in an import ({names}); "
            "the raw exchanges are kept",
        )
    if facts["rejected_rows"]:
        rows = words.count(facts["rejected_rows"], "row")
        yield warning("live_rows_refused", f"{rows} of live exchanges did not fit their dataset", "hyp doctor")
    if facts["ignored"]:
        exchanges = words.count(facts["ignored"], "exchange was", "exchanges were")
        yield info(
            "exchanges_ignored", f"{exchanges} not recorded, as your folders and sessions ask", "hyp session status"
        )


def _counts(value: Any) -> dict[str, Any]:
    return {str(name): count for name, count in value.items()} if isinstance(value, Mapping) else {}


def _most_frequent(counts: Mapping[str, Any]) -> tuple[int, str]:
    """Return the total and the most frequent names."""
    names = sorted(counts, key=lambda name: -_number(counts, name))
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
    return sum(_number(counts, name) for name in names), shown


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
