"""`hyp sessions`: list the recorded sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.index_reader import note_no_match, note_nothing_recorded, open_for_reading
from hypaware.index.filters import format_moments, project_of, to_datetime
from hypaware.text import format_count

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from hypaware.cli.columns import TextColumn
    from hypaware.index.filters import Filters
    from hypaware.index.sessions import SessionList
    from hypaware.index.store import Index

_ON_TERMINAL = 40
_DATE_SUFFIX = re.compile(r"-20\d{6}$")


def show_sessions(filters: Filters, errors: bool, grep: str | None, sort: str, limit: int | None) -> None:
    from hypaware.cli.columns import render_columns, terminal_width
    from hypaware.index.prices import load_prices
    from hypaware.index.session_order import order_sessions
    from hypaware.index.sessions import SessionList

    width = None if output.wants_json() else terminal_width()
    if limit is None and width is not None:
        limit = _ON_TERMINAL
    is_filtered = not filters.is_empty or errors or grep is not None
    with open_for_reading() as index:
        among = None
        if grep is not None:
            from hypaware.index.search import find_sessions

            among = find_sessions(index, grep)
        prices = load_prices(index.home)
        # One more than is shown, to tell whether there are more.
        asked = limit + 1 if limit else None
        numbers = order_sessions(index, filters, prices, errors=errors, among=among, sort=sort, limit=asked)
        found = SessionList(index, numbers[:limit] if limit else numbers, prices)
        if output.wants_json():
            from hypaware.cli.session_json import emit_sessions

            emit_sessions(found)
        elif found.rows:
            output.emit_lines(render_columns(_columns(index, found, filters.timezone, width is not None), width))
        elif index.progress is not None:
            output.emit("no session that is indexed yet matches")
        else:
            output.emit("no session matches" if is_filtered else "no session is recorded")
        if not found.rows and index.progress is None:
            note_no_match(index, filters)
            if not is_filtered:
                note_nothing_recorded()
        elif len(numbers) > len(found.rows) and not output.wants_json():
            output.note(f"showing only {_count_shown(index, found, is_filtered)}; to see all: --limit 0")


def _count_shown(index: Index, found: SessionList, is_filtered: bool) -> str:
    if is_filtered:  # how many match is not known
        return format_count(len(found.rows), "session")
    ((total,),) = index.connection.execute("SELECT count(*) FROM sessions")
    return f"{len(found.rows):,} of {format_count(total, 'session')}"


def _columns(index: Index, found: SessionList, zone: ZoneInfo, on_terminal: bool) -> list[TextColumn]:
    """Return the columns, each made at once: there can be a line for every session."""
    from hypaware.cli.columns import TextColumn, format_cost, format_short, format_span
    from hypaware.index.sessions import StoredSession, shorten_ids

    rows, names = found.rows, found.names
    fields: dict[str, Sequence[Any]] = dict(zip(StoredSession._fields, zip(*rows, strict=True), strict=True))
    ids, ends = fields["session_id"], fields["ended_at"]
    if on_terminal:
        short = shorten_ids(index, ids)
        shown_ids: Sequence[str] = [short[each] for each in ids]
        times = [_format_local(each, zone) for each in ends]
    else:
        shown_ids, times = ids, format_moments(ends, zone)

    def name(ids: Sequence[int | None], show: Callable[[str | None], str | None] = lambda each: each) -> list[str]:
        shown = {each: show(names[each]) or "-" for each in set(ids)}
        return [shown[each] for each in ids]

    def list_models() -> list[str]:
        shown = {each: _format_models([model] if model else [], on_terminal) for each, model in names.items()}
        of_several = found.list_models
        return [
            shown[each] if each is not None else _format_models(of_several(row), on_terminal)
            for each, row in zip(fields["model"], rows, strict=True)
        ]

    tokens = map(sum, zip(*(fields[each] for each in ("input", "output", "cache_read", "cache_write")), strict=True))
    lengths = (
        0.0 if None in pair else (pair[1] - pair[0]) / 1e6 for pair in zip(fields["started_at"], ends, strict=True)
    )
    titles = found.titles
    return [
        TextColumn("id", shown_ids),
        TextColumn("when", times),
        TextColumn("project", name(fields["cwd"], project_of), 2),
        TextColumn(
            "title",
            [titles.get(each) or title or "-" for each, title in zip(ids, fields["title"], strict=True)],
            flexible=True,
        ),
        TextColumn("branch", name(fields["branch"]), 11),
        TextColumn("client", name(fields["client"]), 9),
        TextColumn("model", list_models(), 6),
        TextColumn("turns", list(map(str, fields["turns"])), 4, right=True),
        TextColumn("tools", list(map(str, fields["tool_calls"])), 8, right=True),
        TextColumn("errors", list(map(str, fields["errors"])), 7, right=True),
        TextColumn("tokens", list(map(format_short, tokens)), 3, right=True),
        TextColumn("cost", [format_cost(*found.price(row)) for row in rows], 1, right=True),
        TextColumn("lasted", list(map(format_span, lengths)), 5, right=True),
    ]


def _format_local(moment: int | None, zone: ZoneInfo) -> str:
    if moment is None:
        return "-"
    time = to_datetime(moment).astimezone(zone)
    return f"{time:%b %d %H:%M}" if time.year == datetime.now(zone).year else f"{time:%Y-%m-%d}"


def _format_models(models: list[str], short: bool) -> str:
    if not models:
        return "-"
    if not short:
        return ",".join(models)
    name = _DATE_SUFFIX.sub("", models[0].removeprefix("claude-"))
    return f"{name} +{len(models) - 1}" if len(models) > 1 else name
