"""The list of sessions: the columns, filters and sorts of `hyp sessions`.

The first page is part of the view. Links lead to older pages; they continue after the last session of the page, so that
sessions that arrive in between move nothing. With JavaScript the list is one long list: the script reads the order of
all sessions once (`/lists/order`, their numbers in the index), and then the rows that are scrolled into view by their
numbers (`/lists/rows`). So each session is in the list once, whatever is recorded in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlencode

from aiohttp import web

from hypaware.errors import HypError, UsageError
from hypaware.index.filters import Filters, explain_no_match
from hypaware.index.prices import PriceTable
from hypaware.index.search import find_sessions_within
from hypaware.index.session_order import SORTS, SessionKey, find_key, order_sessions
from hypaware.index.sessions import has_several_machines, read_sessions
from hypaware.index.store import Index
from hypaware.page.address import make_address, read_filters
from hypaware.page.context import PageContext
from hypaware.page.filter_bar import load_filter_bar
from hypaware.page.session_rows import SessionRow, make_row
from hypaware.text import escape_cell

PAGE_ROWS = 100
_MAX_ROWS = 500
_GREP_SECONDS = 0.1
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class ListRequest:
    """What an address asks for."""

    filters: Filters
    errors: bool
    grep: str
    sort: str
    before: SessionKey | None
    offset: int


@dataclass(frozen=True)
class ListPage:
    rows: dict[int, SessionRow]
    """By their numbers, in the order of the list."""
    total: int | None
    """The number of sessions that match; None on a page of older sessions, which does not count them."""
    older: dict[str, str]
    """What the address of the next page has in addition; empty on the last page."""
    has_machines: bool
    is_complete: bool = True
    """False if the words of `grep` are in so many parts that not all sessions were found in time."""
    problem: str = ""
    """Why there is no row, or that the words of `grep` cannot be read."""


def routes(context: PageContext) -> list[web.RouteDef]:
    async def sessions(request: web.Request) -> web.Response:
        asked = read_request(request.query)
        found = await context.read(read_page, asked, context.prices())
        bar = await load_filter_bar(context, request, asked.filters)
        start = None if found.total is None else 1
        rows_address = make_address("/lists/rows", {"timezone": request.query.get("timezone")})
        values = {"asked": asked, "found": found, "bar": bar, "rows_address": rows_address}
        return context.render(
            request, "sessions.html", {**values, **_row_values(found.rows, found.has_machines, start)}
        )

    async def order(request: web.Request) -> web.Response:
        asked = read_request(request.query)
        return web.json_response(await context.read(_read_order, asked, context.prices()))

    async def rows(request: web.Request) -> web.Response:
        numbers = _read_numbers(request.query.get("numbers", ""))
        filters = read_filters(request.query)
        found, has_machines = await context.read(_read_rows, numbers, filters, context.prices())
        values = _row_values(found, has_machines, numbers=numbers)
        return context.render(request, "session_rows.html", values)

    async def compare(request: web.Request) -> web.Response:
        chosen = list(dict.fromkeys(map(unquote, request.query.getall("session", []))))
        if len(chosen) != 2:
            raise UsageError("choose two sessions to compare them")
        raise web.HTTPSeeOther(f"/compare?{urlencode({'a': chosen[0], 'b': chosen[1]})}")

    return [
        web.get("/sessions", sessions),
        web.get("/lists/order", order),
        web.get("/lists/rows", rows),
        web.get("/lists/compare", compare),
    ]


def read_request(query: Mapping[str, str]) -> ListRequest:
    """Return what an address asks for. Raise UsageError if it cannot be read."""
    sort = query.get("sort") or "time"
    if sort not in SORTS:
        raise UsageError(f"sort must be one of {', '.join(SORTS)}, not {escape_cell(sort)}")
    return ListRequest(
        read_filters(query),
        query.get("errors", "") not in ("", "0", "false"),
        query.get("grep", "").strip(),
        sort,
        _read_key(query.get("before", "")) if sort == "time" else None,
        0 if sort == "time" else _read_number("offset", query.get("offset") or "0"),
    )


def read_page(index: Index, asked: ListRequest, prices: PriceTable) -> ListPage:
    """Return a page of the list, and how many sessions match."""
    has_machines = has_several_machines(index)
    try:
        among, is_complete = _find_among(index, asked)
    except HypError as error:
        return ListPage({}, 0, {}, has_machines, problem=error.message)
    # All numbers on the first page, to count them; on others one more than is shown, to know whether there are more.
    is_first = asked.before is None and asked.offset == 0
    numbers = order_sessions(
        index,
        asked.filters,
        prices,
        errors=asked.errors,
        among=among,
        sort=asked.sort,
        limit=None if is_first else PAGE_ROWS + 1,
        offset=asked.offset,
        before=asked.before,
    )
    shown = numbers[:PAGE_ROWS]
    older = {}
    if len(numbers) > len(shown):
        if asked.sort == "time":
            older = {"before": "{0.ended_at}.{0.number}".format(find_key(index, shown[-1]))}
        else:
            older = {"offset": str(asked.offset + PAGE_ROWS)}
    return ListPage(
        _make_rows(index, shown, asked.filters, prices),
        len(numbers) if is_first else None,
        older,
        has_machines,
        is_complete,
        "" if numbers else explain_no_match(index.connection, asked.filters) or "",
    )


def _read_order(index: Index, asked: ListRequest, prices: PriceTable) -> list[int]:
    among, _ = _find_among(index, asked)
    return order_sessions(index, asked.filters, prices, errors=asked.errors, among=among, sort=asked.sort)


def _find_among(index: Index, asked: ListRequest) -> tuple[set[int] | None, bool]:
    """Return the sessions that contain the words, None without words, and whether these are all."""
    return find_sessions_within(index, asked.grep, _GREP_SECONDS) if asked.grep else (None, True)


def _read_rows(
    index: Index, numbers: list[int], filters: Filters, prices: PriceTable
) -> tuple[dict[int, SessionRow], bool]:
    return _make_rows(index, numbers, filters, prices), has_several_machines(index)


def _make_rows(index: Index, numbers: list[int], filters: Filters, prices: PriceTable) -> dict[int, SessionRow]:
    now = datetime.now(UTC)
    found = read_sessions(index, numbers, prices)
    return {number: make_row(number, session, filters.timezone, now) for number, session in found.items()}


def _row_values(
    rows: dict[int, SessionRow], has_machines: bool, start: int | None = None, numbers: list[int] | None = None
) -> dict[str, Any]:
    """Return what `session_rows.html` needs. `start` is the position before the first row, if it is known."""
    return {"rows": rows, "numbers": numbers or list(rows), "has_machines": has_machines, "start": start}


def _read_numbers(text: str) -> list[int]:
    numbers = [_read_number("numbers", each) for each in text.split(",") if each]
    if len(numbers) > _MAX_ROWS:
        raise UsageError(f"at most {_MAX_ROWS} rows can be read at once")
    return numbers


def _read_key(text: str) -> SessionKey | None:
    if not text:
        return None
    ended_at, _, number = text.partition(".")
    sign = -1 if ended_at.startswith("-") else 1
    return SessionKey(sign * _read_number("before", ended_at.removeprefix("-")), _read_number("before", number))


def _read_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MAX_NUMBER):
        raise UsageError(f"{name}={escape_cell(text[:40])} is not a place in the list")
    return int(text)
