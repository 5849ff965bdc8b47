"""The time zone of the user, and the days of a time zone as arithmetic on slots.

A slot is a quarter of an hour, and the offset of every zone in use is a multiple of it. So the day of a slot is
`(slot + offset) / 96`, with one offset for each period between two changes of the clock.
"""

from __future__ import annotations

import io
import os
import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypaware.errors import UsageError
from hypaware.index.schema import SLOT
from hypaware.text import did_you_mean, escape_cell

_LOCAL_TIME = Path("/etc/localtime")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SLOTS = 96
# The clock of a zone changes at most once within this time (Ramadan: about a month).
_STEP_SLOTS = 14 * _DAY_SLOTS
_MAX_SLOT = 253_402_300_800 * 1_000_000 // SLOT - 2 * _DAY_SLOTS
_MAX_RANGES = 5000
# Slots of a day and of a week, which begins on a Monday, and how many slots the first one begins before 1970.
_LENGTHS = {"day": (_DAY_SLOTS, 0), "week": (7 * _DAY_SLOTS, 3 * _DAY_SLOTS)}


class SlotRange(NamedTuple):
    """The slots of a day or week."""

    key: int
    """Days or weeks since 1970, as in `day_sql` and `week_sql`."""
    first: int
    last: int


def find_zone(name: str | None = None) -> ZoneInfo:
    """Return the time zone of this name, or without one the user's own: `TZ`, or else the system's."""
    if name is None:
        return _local_zone()
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        from zoneinfo import available_timezones

        hint = did_you_mean(name, sorted(available_timezones()), or_all=False)
        raise UsageError(
            f"unknown time zone {escape_cell(name)!r}.{hint} Write a name such as Europe/Berlin or UTC",
            kind="unknown_timezone",
        ) from None


def _local_zone() -> ZoneInfo:
    if given := os.environ.get("TZ", "").removeprefix(":"):
        try:
            return _read_zone(Path(given)) if given.startswith("/") else ZoneInfo(given)
        except (OSError, ValueError, KeyError):
            pass
        try:
            return ZoneInfo.from_file(io.BytesIO(_to_zone_file(given)), key=given)
        except ValueError:
            return ZoneInfo("UTC")
    try:
        return _read_zone(_LOCAL_TIME)
    except (OSError, ValueError, KeyError):
        return ZoneInfo("UTC")


def _read_zone(path: Path) -> ZoneInfo:
    """Return the zone of a file, under its name if the file is part of a database of time zones."""
    _, found, name = str(path.resolve()).rpartition("/zoneinfo/")
    if found:
        return ZoneInfo(name)
    with path.open("rb") as file:
        return ZoneInfo.from_file(file, key="local")


def _to_zone_file(rule: str) -> bytes:
    """Return a time zone file in which a POSIX rule, such as `CET-1CEST,M3.5.0,M10.5.0/3`, always applies."""
    block = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    return block * 2 + b"\n" + rule.encode("ascii", "replace") + b"\n"


def day_sql(zone: ZoneInfo, first_slot: int, last_slot: int, slot: str = "slot") -> str:
    """Return the SQL expression for the day of a slot, in days since 1970, for slots in this range."""
    return f"(({slot} + {_offset_sql(zone, first_slot, last_slot, slot)}) / {_DAY_SLOTS})"


def hour_sql(zone: ZoneInfo, first_slot: int, last_slot: int, slot: str = "slot") -> str:
    """Return the SQL expression for the hour of a slot, by the zone's clock, in hours since 1970.

    When the clock is set back, two hours of the same name are one.
    """
    return f"(({slot} + {_offset_sql(zone, first_slot, last_slot, slot)}) / {_DAY_SLOTS // 24})"


def week_sql(zone: ZoneInfo, first_slot: int, last_slot: int, slot: str = "slot") -> str:
    """Return the SQL expression for the week of a slot, from Monday, in weeks since 1970. Week 0 begins on day -3."""
    return f"(({day_sql(zone, first_slot, last_slot, slot)} + 3) / 7)"


def list_ranges(zone: ZoneInfo, time: str, first_slot: int, last_slot: int) -> list[SlotRange] | None:
    """Return the days or weeks of this range, in order. None if they are too many, or if one of them is interrupted.

    A day is interrupted if the clock is set back over midnight after midnight has passed.
    """
    length, before = _LENGTHS[time]
    if first_slot < 0 or last_slot > _MAX_SLOT or (last_slot - first_slot) // length > _MAX_RANGES:
        return None
    found: list[SlotRange] = []
    periods = list_offsets(zone, first_slot, last_slot)
    for (begin, offset), end in zip(periods, [*(each[0] for each in periods[1:]), last_slot + 1], strict=True):
        shift = offset + before
        for key in range((begin + shift) // length, (end - 1 + shift) // length + 1):
            first, last = max(begin, key * length - shift), min(end, (key + 1) * length - shift) - 1
            if found and found[-1].key == key:
                found[-1] = SlotRange(key, found[-1].first, last)
            elif found and found[-1].key > key:
                return None
            else:
                found.append(SlotRange(key, first, last))
    return found


def _offset_sql(zone: ZoneInfo, first_slot: int, last_slot: int, slot: str) -> str:
    changes = list_offsets(zone, first_slot, last_slot)
    offset = str(changes[-1][1])
    if len(changes) == 1:
        return offset
    cases = " ".join(f"WHEN {slot} < {later[0]} THEN {each[1]}" for each, later in pairwise(changes))
    return f"CASE {cases} ELSE {offset} END"


def list_offsets(zone: ZoneInfo, first_slot: int, last_slot: int) -> list[tuple[int, int]]:
    """Return the periods of the range as (first slot, offset in slots)."""
    at = max(0, min(first_slot, _MAX_SLOT))
    end = min(last_slot, _MAX_SLOT)
    found = [(at, _offset(zone, at))]
    while at < end:
        after = min(at + _STEP_SLOTS, end)
        if _offset(zone, after) != found[-1][1]:
            low, high = at, after
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == found[-1][1] else (low, middle)
            found.append((high, _offset(zone, high)))
            after = high
        at = after
    return found


def _offset(zone: ZoneInfo, slot: int) -> int:
    offset = (_EPOCH + timedelta(microseconds=slot * SLOT)).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // timedelta(microseconds=SLOT)
