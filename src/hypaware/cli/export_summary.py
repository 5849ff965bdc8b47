"""The printed summary of a delivery and of the streams: a table, then the problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hypaware.cli import output

Stream = Mapping[str, Any]
"""One stream of a report or of the status, as the JSON document has it."""


def show_round(report: Mapping[str, Any], *, dry_run: bool) -> None:
    for sink in report["sinks"]:
        output.emit(f"{sink['sink']}: {sink['status']}")
        if sink["streams"]:
            columns = ["dataset", "source", "would send" if dry_run else "rows", "MB", "chunks", "up to", "status"]
            ordered = sorted(sink["streams"], key=lambda stream: (stream["dataset"], stream["source"]))
            output.emit_table(columns, [_row(stream, dry_run) for stream in ordered])
        elif not sink.get("error"):
            output.emit("no rows in the lake for this sink yet")
    for sink in report["sinks"]:
        _note_privacy(sink)
        _warn_about_errors(sink)


def show_status(streams: Sequence[Stream], now: datetime) -> None:
    if not streams:
        output.emit("no streams yet: the lake has no rows for any sink")
        return
    columns = [
        "sink",
        "dataset",
        "source",
        "delivered up to",
        "of",
        "rows behind",
        "behind",
        "pending",
        "next delivery",
    ]
    output.emit_table(columns, [_status_row(stream, now) for stream in streams])
    for stream in streams:
        for line in _problems(stream, now):
            output.emit(f"{_name(stream)}: {line}")


def _row(stream: Stream, dry_run: bool) -> tuple[object, ...]:
    size = None if dry_run else round(stream["bytes"] / 1e6, 2)
    chunks = None if dry_run else stream["chunks"]
    return (stream["dataset"], stream["source"], stream["rows"], size, chunks, stream["last"], _outcome(stream))


def _outcome(stream: Stream) -> str:
    error = stream.get("error")
    if error:
        return "held" if error["kind"] == "held" else "partial" if stream["chunks"] else "failed"
    return f"{stream['dead_letters']} refused" if stream["dead_letters"] else "ok"


def _note_privacy(sink: Mapping[str, Any]) -> None:
    withheld = sum(stream.get("withheld", 0) for stream in sink["streams"])
    redacted: Counter[str] = Counter()
    for stream in sink["streams"]:
        redacted.update(stream.get("redacted", {}))
    if withheld:
        output.note(f"{sink['sink']}: {withheld} private {'row' if withheld == 1 else 'rows'} not sent")
    if redacted:
        rules = ", ".join(f"{rule} {count}" for rule, count in redacted.most_common())
        output.note(f"{sink['sink']}: secrets redacted in the sent rows: {rules}")


def _warn_about_errors(sink: Mapping[str, Any]) -> None:
    if error := sink.get("error"):
        output.warn(f"{sink['sink']}: {error['message']}")
    for stream in sink["streams"]:
        if (error := stream.get("error")) and error != sink.get("error"):
            output.warn(f"{sink['sink']}: {stream['dataset']} of {stream['source']}: {error['message']}")


def _status_row(stream: Stream, now: datetime) -> tuple[object, ...]:
    pending = stream["pending"]
    lag, behind = stream["lag_rows"], stream["lag_seconds"]
    return (
        stream["sink"],
        stream["dataset"],
        stream["source"],
        "unknown" if stream["watermark"] is None else stream["watermark"],
        stream["high_water"],
        lag,
        "-" if not lag else "unknown" if behind is None else duration(behind),
        pending and f"{pending['chunks_acked']} of {pending['chunks_total']} chunks",
        _next_delivery(stream, now),
    )


def _next_delivery(stream: Stream, now: datetime) -> str:
    if stream.get("removed"):
        return "never"
    if stream["held"]:
        return "held"
    due: datetime = stream["next_round"]
    if (retry := stream["retry_at"]) is not None and retry > now:
        due = min(due, retry)
    return f"in {duration((due - now).total_seconds())}"


def _problems(stream: Stream, now: datetime) -> Iterable[str]:
    if stream.get("removed"):
        yield "removed from the config; nothing more is delivered"
    moved = stream["delivered_to"] not in (None, stream["address"])
    if moved and stream["address"] and not stream["held"]:
        yield (
            f"was delivered to {stream['delivered_to']}, but the config now names {stream['address']}; "
            f"hyp export adopt {stream['sink']} continues there, hyp export resend {stream['sink']} sends everything"
        )
    if stream["held"]:
        yield f"held: {stream['last_error'] or stream['held']}"
    elif stream["last_error"]:
        retry = stream["retry_at"]
        again = f" (retry in {duration((retry - now).total_seconds())})" if retry and retry > now else ""
        yield f"{stream['last_error']}{again}; to try now: hyp export {stream['sink']}"
    if refused := stream["dead_letters"]:
        noun = "dead letter" if refused == 1 else "dead letters"
        yield f"{refused} {noun} to replay or drop: hyp export dead-letters list --sink {stream['sink']}"


def _name(stream: Stream) -> str:
    return f"{stream['sink']}: {stream['dataset']} of {stream['source']}"


def duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
