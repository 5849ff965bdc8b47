"""What a delivery did and where its streams stand, for people: a table, then everything that is in the way."""

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
            output.emit("the lake has no rows for it yet")
    for sink in report["sinks"]:
        _tell_of_clearance(sink)
        _warn_of_trouble(sink)


def show_status(streams: Sequence[Stream], now: datetime) -> None:
    if not streams:
        output.emit("there are no streams yet: the lake has no rows for any sink")
        return
    columns = ["sink", "dataset", "source", "delivered up to", "of", "rows behind", "behind", "pending", "next round"]
    output.emit_table(columns, [_standing(stream, now) for stream in streams])
    for stream in streams:
        for line in _in_the_way(stream, now):
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


def _tell_of_clearance(sink: Mapping[str, Any]) -> None:
    withheld = sum(stream.get("withheld", 0) for stream in sink["streams"])
    redacted: Counter[str] = Counter()
    for stream in sink["streams"]:
        redacted.update(stream.get("redacted", {}))
    if withheld:
        output.note(f"{sink['sink']}: {withheld} {'row stays' if withheld == 1 else 'rows stay'} on this machine")
    if redacted:
        rules = ", ".join(f"{rule} {count}" for rule, count in redacted.most_common())
        output.note(f"{sink['sink']}: secrets replaced in what was sent: {rules}")


def _warn_of_trouble(sink: Mapping[str, Any]) -> None:
    if error := sink.get("error"):
        output.warn(f"{sink['sink']}: {error['message']}")
    for stream in sink["streams"]:
        if (error := stream.get("error")) and error != sink.get("error"):
            output.warn(f"{sink['sink']}: {stream['dataset']} of {stream['source']}: {error['message']}")


def _standing(stream: Stream, now: datetime) -> tuple[object, ...]:
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
        _when(stream, now),
    )


def _when(stream: Stream, now: datetime) -> str:
    if stream.get("removed"):
        return "never"
    if stream["held"]:
        return "held"
    following: datetime = stream["next_round"]
    if (retry := stream["retry_at"]) is not None and retry > now:
        following = min(following, retry)
    return f"in {duration((following - now).total_seconds())}"


def _in_the_way(stream: Stream, now: datetime) -> Iterable[str]:
    if stream.get("removed"):
        yield "the config no longer has it, so nothing more is delivered"
    moved = stream["delivered_to"] not in (None, stream["address"])
    if moved and stream["address"] and not stream["held"]:
        yield (
            f"it was delivered to {stream['delivered_to']}, and the config says {stream['address']} now; "
            f"hyp export adopt {stream['sink']} goes on from here, hyp export resend {stream['sink']} sends all"
        )
    if stream["held"]:
        yield f"held: {stream['last_error'] or stream['held']}"
    elif stream["last_error"]:
        retry = stream["retry_at"]
        again = f" (again in {duration((retry - now).total_seconds())})" if retry and retry > now else ""
        yield f"{stream['last_error']}{again}; to try now: hyp export {stream['sink']}"
    if refused := stream["dead_letters"]:
        noun = "dead letter waits" if refused == 1 else "dead letters wait"
        yield f"{refused} {noun}: hyp export dead-letters list --sink {stream['sink']}"


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
