"""The printed summary of maintenance: a line per dataset, the reason, and the rows that retention holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from hypaware.cli import output

# Partitions listed by a dry run; --json has all of them.
_MAX_SHOWN_PARTITIONS = 20


def show(report: Mapping[str, Any], *, dry_run: bool) -> None:
    if not report["datasets"]:
        output.emit("the lake is empty")
        return
    dropped, expired = ("would drop", "would expire") if dry_run else ("rows dropped", "snapshots expired")
    columns = ["dataset", "files", "MB", dropped, "rows held", expired]
    output.emit_table(columns, [_row(each) for each in report["datasets"]])
    for each in report["datasets"]:
        output.emit(f"{each['dataset']}: {each['reason']}")
        if dry_run:
            _show_partitions(each)
    for each in report["datasets"]:
        _show_held(each)
        if each["rows_without_time"]:
            output.note(f"{each['dataset']}: {each['rows_without_time']:,} rows have no timestamp and are kept")
        for path in each["set_aside"]:
            output.warn(f"{each['dataset']}: unreadable file moved to {path}")


def _row(each: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        each["dataset"],
        _change(f"{each['files_before']:,}", f"{each['files_after']:,}"),
        _change(f"{each['bytes_before'] / 1e6:,.1f}", f"{each['bytes_after'] / 1e6:,.1f}"),
        each["rows_expired"],
        each["rows_held"],
        each["snapshots_expired"],
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _show_partitions(each: Mapping[str, Any]) -> None:
    """Print the affected partitions with their current size; the size after a rewrite is not known before."""
    parts = [("dropped", part) for part in each["dropped"]] + [("rewritten", part) for part in each["rewritten"]]
    if not parts:
        return
    output.emit()
    shown = [
        (part["source"], part["day"], part["files"], f"{part['bytes'] / 1e6:,.1f}", f"would be {what}")
        for what, part in parts[:_MAX_SHOWN_PARTITIONS]
    ]
    output.emit_table(["source", "day", "files", "MB", ""], shown)
    if more := len(parts) - len(shown):
        output.emit(f"and {more:,} more (use --json to see all)")
    output.emit()


def _show_held(each: Mapping[str, Any]) -> None:
    if not each["held"]:
        return
    groups: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    by_sink: defaultdict[str, int] = defaultdict(int)
    for part in each["held"]:
        groups[part["source"], part["since"], part["until"], tuple(part["sinks"])].append(part)
        for sink in part["sinks"]:
            by_sink[sink] += part["rows"]
    output.emit()
    output.emit(f"{each['dataset']}: expired days that are held until a sink has received them")
    columns = ["source", "days", "from", "to", "rows", "held for", "held since", "dropped on"]
    output.emit_table(columns, [_held_row(key, parts) for key, parts in sorted(groups.items())])
    for sink, count in sorted(by_sink.items()):
        output.emit(f"{count:,} rows are held for {sink}; to deliver them: hyp export {sink}")
    output.emit("to see why they are not delivered: hyp export status")


def _held_row(key: tuple[Any, ...], parts: list[Mapping[str, Any]]) -> tuple[object, ...]:
    source, since, until, sinks = key
    days = sorted({part["day"] for part in parts})
    rows = sum(part["rows"] for part in parts)
    return (source, len(days), days[0], days[-1], rows, ", ".join(sinks), since, until)
