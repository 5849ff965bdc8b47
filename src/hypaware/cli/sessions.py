"""`hyp sessions`: list the recorded sessions."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.index_reader import note_no_match, open_for_reading
from hypaware.text import format_count

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from hypaware.cli.columns import TextColumn
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index

_ON_TERMINAL = 40
_DATE_SUFFIX = re.compile(r"-20\d{6}$")
Session = dict[str, Any]


def show_sessions(filters: Filters, errors: bool, grep: str | None, sort: str, limit: int | None) -> None:
    from hypaware.cli.columns import render_columns, terminal_width
    from hypaware.index.prices import load_prices
    from hypaware.index.sessions import list_sessions

    width = None if output.wants_json() else terminal_width()
    if limit is None and width is not None:
        limit = _ON_TERMINAL
    with open_for_reading() as index:
        among = None
        if grep is not None:
            from hypaware.index.search import find_sessions

            among = find_sessions(index, grep)
        # One more than is shown, to tell whether there are more.
        asked = limit + 1 if limit else None
        found = list_sessions(
            index, filters, load_prices(index.home), errors=errors, among=among, sort=sort, limit=asked
        )
        shown = found[:limit] if limit else found
        if not output.emit_document({"sessions": shown}):
            if shown:
                output.emit(render_columns(_columns(index, shown, filters.timezone, width is not None), width))
            elif index.progress is not None:
                output.emit("no session that is indexed yet matches")
            else:
                output.emit(
                    "no session is recorded" if filters.is_empty and not (errors or grep) else "no session matches"
                )
        if not shown and index.progress is None:
            note_no_match(index, filters)
        elif len(found) > len(shown) and not output.wants_json():
            output.note(f"showing only {format_count(len(shown), 'session')}; to see all: --limit 0")


def _columns(index: Index, found: list[Session], zone: ZoneInfo, on_terminal: bool) -> list[TextColumn]:
    from hypaware.cli.columns import TextColumn, format_cost, format_short, format_span
    from hypaware.index.sessions import shorten_ids, sum_tokens

    def cells(get: Callable[[Session], Any]) -> list[str]:
        return ["-" if (value := get(each)) is None else str(value) for each in found]

    ids = shorten_ids(index, [each["session_id"] for each in found]) if on_terminal else {}
    times = _format_local if on_terminal else _format_full
    return [
        TextColumn("id", cells(lambda each: ids.get(each["session_id"], each["session_id"]))),
        TextColumn("when", cells(lambda each: times(_to_local(each["ended_at"], zone)))),
        TextColumn("project", cells(lambda each: each["project"]), 2),
        TextColumn("title", cells(lambda each: each["title"]), flexible=True),
        TextColumn("branch", cells(lambda each: each["branch"]), 11),
        TextColumn("client", cells(lambda each: each["client"]), 9),
        TextColumn("model", cells(lambda each: _format_models(each["models"], on_terminal)), 6),
        TextColumn("turns", cells(lambda each: each["turns"]), 4, right=True),
        TextColumn("tools", cells(lambda each: each["tool_calls"]), 8, right=True),
        TextColumn("errors", cells(lambda each: each["errors"]), 7, right=True),
        TextColumn("tokens", cells(lambda each: format_short(sum_tokens(each["tokens"]))), 3, right=True),
        TextColumn("cost", cells(lambda each: format_cost(each["cost_usd"], each["unpriced_models"])), 1, right=True),
        TextColumn("lasted", cells(lambda each: format_span(_seconds(each))), 5, right=True),
    ]


def _to_local(text: str | None, zone: ZoneInfo) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(zone)


def _format_local(time: datetime | None) -> str | None:
    if time is None:
        return None
    return f"{time:%b %d %H:%M}" if time.year == datetime.now(time.tzinfo).year else f"{time:%Y-%m-%d}"


def _format_full(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")


def _format_models(models: list[str], short: bool) -> str | None:
    if not models:
        return None
    if not short:
        return ",".join(models)
    name = _DATE_SUFFIX.sub("", models[0].removeprefix("claude-"))
    return f"{name} +{len(models) - 1}" if len(models) > 1 else name


def _seconds(session: Session) -> float:
    started, ended = (session[name] for name in ("started_at", "ended_at"))
    if started is None or ended is None:
        return 0.0
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
