"""Numbers, times and costs for people, as filters of the templates.

`{{ 1234567 | amount }}` is 1.23M, `| whole` 1,234,567; `{{ row | cost }}` $1.20; `{{ 0.043 | percent }}` 4.3 %;
`{{ 300 | span }}` 5m; of a time in ISO 8601, `| ago` is 3 minutes ago, `| local(zone)` Nov 15 09:00.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from hypaware.text import format_ago, parse_time

_UNITS = ((1_000_000_000_000, "T"), (1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k"))
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def format_amount(number: float | None) -> str:
    """Return a number in at most four digits and a unit: 950, 12.3k, 4.56M."""
    if number is None:
        return "–"
    for size, unit in _UNITS:
        # 999,950 is 1M, not 1000k.
        if abs(number) >= size * 0.9995:
            value = number / size
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            text = f"{value:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if digits else text) + unit
    return f"{number:,.0f}"


def format_whole(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def format_dollars(amount: float | None) -> str:
    """Return an amount of dollars; None means that no price is known."""
    if amount is None:
        return "–"
    if 0 < abs(amount) < 0.005:
        return "<$0.01"
    return f"${amount:,.2f}" if abs(amount) < 9999.5 else f"${amount:,.0f}"


def format_document_cost(document: Mapping[str, Any]) -> str:
    """Return the cost of a document: `$1.20+` if the price of some models is unknown, `?` if it is of all."""
    cost: float | None = document["cost_usd"]
    unpriced: Sequence[str] = document["unpriced_models"]
    if cost is None:
        return "?" if unpriced else "–"
    return format_dollars(cost) + ("+" if unpriced else "")


def format_percent(part: float | None) -> str:
    """Return a part of one as percent, with one digit below ten."""
    if part is None:
        return "–"
    percent = part * 100
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def format_lapse(seconds: float | None) -> str:
    """Return a duration in at most six characters: 42s, 12m, 3h05, 4d."""
    if seconds is None:
        return "–"
    if seconds < 59.5:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    return f"{minutes // 60}h{minutes % 60:02}" if minutes < 48 * 60 else f"{round(minutes / 1440)}d"


def format_local(text: object, zone: tzinfo = UTC) -> str:
    """Return a time (ISO 8601) in the zone: `Nov 15 09:00`, with the year if it is not this one."""
    if (found := parse_time(text)) is None:
        return "–"
    local = found.astimezone(zone)
    is_recent = local.year == datetime.now(zone).year
    return f"{local:%b} {local.day} {local:%H:%M}" if is_recent else f"{local:%Y-%m-%d %H:%M}"


def format_since(text: object) -> str:
    return format_ago(text, datetime.now(UTC))


def is_day(text: str) -> bool:
    return _DAY.fullmatch(text) is not None


FILTERS: dict[str, Callable[..., Any]] = {
    "amount": format_amount,
    "whole": format_whole,
    "dollars": format_dollars,
    "cost": format_document_cost,
    "percent": format_percent,
    "span": format_lapse,
    "local": format_local,
    "ago": format_since,
    "is_day": is_day,
}
