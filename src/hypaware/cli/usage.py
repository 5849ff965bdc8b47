"""`hyp usage`: tokens and cost, by time, project, model, client, session or machine."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.index_reader import note_no_match, note_nothing_recorded, open_for_reading
from hypaware.errors import UsageError
from hypaware.text import format_count

if TYPE_CHECKING:
    from hypaware.cli.columns import TextColumn
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index
    from hypaware.index.usage import UsageTable

_ON_TERMINAL = 40
_TIMES = ("day", "week", "month")
_STDIN_SECONDS = 0.3
_MAX_STDIN = 1 << 20
Document = dict[str, Any]


def show_usage(filters: Filters, by: str | None, statusline: bool, limit: int | None) -> None:
    from hypaware.cli.columns import terminal_width
    from hypaware.index.prices import load_prices
    from hypaware.index.usage import read_usage, summarize_usage

    if statusline:
        if by is not None or limit is not None or output.wants_json():
            raise UsageError("--statusline prints one line and takes none of --by, --limit and --json")
        _print_statusline(filters)
        return
    width = None if output.wants_json() else terminal_width()
    if limit is None and width is not None:
        limit = _ON_TERMINAL
    with open_for_reading() as index:
        prices, chosen = load_prices(index.home), by or "day"
        if output.wants_json():
            document = summarize_usage(index, filters, prices, by=chosen, limit=limit or None)
            output.emit_json(document)
            is_empty = not document["rows"]
        else:
            found = read_usage(index, filters, prices, by=chosen, limit=limit or None)
            names = None
            if chosen == "session" and width is not None:
                names = _name_sessions(index, [str(row.key) for row in found.rows])
            output.emit_lines(_render(found, chosen, prices.as_of, width, names))
            is_empty = not found.rows
            if len(found.rows) < found.row_count:
                kept = "newest" if chosen in _TIMES else "most expensive"
                counted = format_count(found.row_count, chosen)
                output.note(f"showing only the {len(found.rows):,} {kept} of {counted}; to see all: --limit 0")
        if is_empty and index.progress is None:
            note_no_match(index, filters)
            if filters.is_empty:
                note_nothing_recorded()


def _name_sessions(index: Index, ids: Sequence[str]) -> list[TextColumn]:
    """Return what a person knows sessions by, short enough for a terminal. The last cell is that of the total."""
    from hypaware.cli.columns import TextColumn
    from hypaware.index.sessions import read_shown_titles, shorten_ids

    short, titles = shorten_ids(index, ids), read_shown_titles(index, ids)
    return [
        TextColumn("session", [*(short[each] for each in ids), "total"]),
        TextColumn("title", [*(titles.get(each) or "-" for each in ids), ""], flexible=True),
    ]


def _render(
    found: UsageTable, by: str, as_of: str, width: int | None, names: Sequence[TextColumn] | None = None
) -> Iterable[str]:
    from hypaware.cli.columns import TextColumn, format_cost, format_short, render_columns

    if not found.rows:
        return ["no usage matches"]
    # Column by column: there can be a row for every session.
    keys, sessions, *tokens, _, costs, unpriced, _ = zip(*found.rows, found.total, strict=True)
    heads = (("input", 3), ("output", 2), ("cache read", 4), ("cache write", 4))
    columns = [
        *(
            names
            or (
                TextColumn(by, [key or "(unknown)" for key in keys], flexible=True),
                TextColumn("sessions", [f"{count:,}" for count in sessions], 5, right=True),
            )
        ),
        *(
            TextColumn(head, list(map(format_short, counts)), rank, right=True)
            for (head, rank), counts in zip(heads, tokens, strict=True)
        ),
        TextColumn("cost", list(map(format_cost, costs, unpriced)), right=True),
    ]
    return chain(render_columns(columns, width), ("", describe_prices(as_of, found.total.unpriced)))


def describe_prices(as_of: str, unpriced: Sequence[str]) -> str:
    """Return the date of the prices, and the models that have none."""
    text = f"API list prices of {as_of}"
    if unpriced:
        text += f"; without {', '.join(unpriced)}, for which there is no price (usage.prices in the config adds one)"
    return text


def _print_statusline(filters: Filters) -> None:
    """Print one line, or nothing if anything is wrong: a status bar shows no errors."""
    try:
        line = _make_statusline(filters, _read_stdin())
    except Exception:
        if os.environ.get("HYP_DEBUG") == "1":
            raise
        return
    output.emit(line)


def _make_statusline(filters: Filters, status: Document) -> str:
    from datetime import datetime

    from hypaware.cli.columns import format_cost
    from hypaware.home import Home
    from hypaware.index.filters import to_moment
    from hypaware.index.prices import load_prices
    from hypaware.index.store import open_index
    from hypaware.index.usage import price_session, summarize_usage

    today = datetime.now(filters.timezone).replace(hour=0, minute=0, second=0, microsecond=0)
    month = filters._replace(since=to_moment(today.replace(day=1)), until=None)
    shown = []
    with open_index(Home.from_environment()) as index:
        prices = load_prices(index.home)
        if isinstance(session_id := status.get("session_id"), str):
            cost = price_session(index, session_id, prices) or _reported_cost(status)
            shown.append(f"{format_cost(*cost)} session")
        by_day = summarize_usage(index, month, prices, by="day")
        rows = {row["key"]: row for row in by_day["rows"]}
        for name, row in (("today", rows.get(today.date().isoformat())), ("this month", by_day["total"])):
            amount = "$0.00"
            if row and (row["cost_usd"] is not None or row["unpriced_models"]):
                amount = format_cost(row["cost_usd"], row["unpriced_models"])
            shown.append(f"{amount} {name}")
        if index.progress is not None:
            shown.append(f"indexing {index.progress:.0%}")
    return " | ".join(shown)


def _reported_cost(status: Document) -> tuple[float | None, tuple[str, ...]]:
    """Return the cost that the client itself reports for a session that is not recorded yet."""
    cost = status.get("cost")
    usd = cost.get("total_cost_usd") if isinstance(cost, dict) else None
    return (float(usd) if isinstance(usd, int | float) else None), ()


def _read_stdin() -> Document:
    """Return the JSON object on standard input; an empty one if none is there yet."""
    import json

    if sys.stdin is None or sys.stdin.isatty():
        return {}
    data, deadline = b"", time.monotonic() + _STDIN_SECONDS
    descriptor = sys.stdin.fileno()
    while len(data) < _MAX_STDIN and (rest := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], rest)[0] or not (chunk := os.read(descriptor, 1 << 16)):
            break
        data += chunk
    try:
        status = json.loads(data)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
