"""The printed summary of an import: a line per client, then what was not imported and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hypaware.cli import output

if TYPE_CHECKING:
    from hypaware.backfill.provider import Provider
    from hypaware.backfill.wanted import Wanted
    from hypaware.home import Home

Result = Mapping[str, Any]
"""One provider in the report of an import."""


class _Count(int):
    """A number that is printed with thousands separators."""

    def __str__(self) -> str:
        return f"{int(self):,}"


def show_run(report: Mapping[str, Any], request: Wanted, home: Home) -> None:
    dry, results = bool(report["dry_run"]), report["providers"]
    written = "would write" if dry else "written"
    output.emit_table(
        ["client", "sessions", written, "already stored", "rejected", "tokens in", "out", "cached", "from", "to"],
        [_row(each) for each in results],
    )
    providers = {each.name: each.provider for each in request.selection.chosen}
    for each in results:
        for line in left_out(each):
            output.emit(f"{each['provider']}: {line}")
        if each["status"] == "ok" and not _found_anything(each):
            output.emit(f"{each['provider']}: {_searched_places(providers[each['provider']], request)}")
    for each in results:
        warn_of_trouble(each, home, dry)
    if any(each["rows_written"] for each in results):
        output.note("next: hyp backfill" if dry else "next: hyp query overview")


def show_plan(found: Mapping[str, Any]) -> None:
    plans = {each["provider"]: each["plan"] for each in found["providers"] if each["plan"] is not None}
    output.emit_table(
        ["client", "to read", "size"],
        [(name, _Count(plan["estimated_items"]), _size(plan["estimated_bytes"])) for name, plan in plans.items()],
    )
    for name, plan in plans.items():
        for line in (*plan["sources"], *plan["notes"]):
            output.emit(f"{name}: {line}")
    for each in found["providers"]:
        _warn_of_failure(each)


def _row(each: Result) -> tuple[object, ...]:
    summary = each.get("summary") or {}
    tokens = summary.get("tokens") or {}
    return (
        each["provider"],
        _Count(each["sessions_seen"]),
        _Count(each["rows_written"]),
        _Count(each["rows_skipped"] - each.get("rows_purged", 0) - each.get("rows_ignored", 0)),
        _Count(each["rows_rejected"]),
        _Count(tokens.get("input_tokens", 0)),
        _Count(tokens.get("output_tokens", 0)),
        _Count(tokens.get("cache_read_tokens", 0) + tokens.get("cache_write_tokens", 0)),
        summary.get("first_day"),
        summary.get("last_day"),
    )


def left_out(each: Result) -> Iterator[str]:
    """Yield a line for each reason why content of the sources is not in the lake."""
    if unchanged := each["files_unchanged"]:
        yield f"{_some(unchanged, 'file')} unchanged since the last import"
    if skipped := each["lines_skipped"]:
        yield f"{_some(sum(skipped.values()), 'line')} produced no row: {_reasons(skipped)}"
    if skipped := each.get("files_skipped"):
        yield f"{_some(sum(skipped.values()), 'file')} not read: {_reasons(skipped)}"
    if held := each.get("held_back"):
        yield f"{_some(held, 'message')} held back: still being written, left for the next import"


def warn_of_trouble(each: Result, home: Home, dry: bool) -> None:
    name = each["provider"]
    if rejected := each["rows_rejected"]:
        kept = ", ".join(str(home.spool / dataset / "rejected") for dataset in each["datasets"])
        what = "would be rejected" if dry else f"rejected; see {kept} for the reasons"
        output.warn(f"{name}: {_some(rejected, 'row')} {what}")
    _warn_of_failure(each)


def _warn_of_failure(each: Result) -> None:
    if error := each.get("error"):
        output.warn(f"{each['provider']} failed ({error['kind']}): {error['message']}")


def _found_anything(each: Result) -> bool:
    return bool(each.get("files") or each["files_unchanged"] or each["items_seen"] or each.get("files_skipped"))


def _searched_places(provider: Provider, request: Wanted) -> str:
    variables = request.environment
    names = dict.fromkeys((*provider.environment, "HOME"))
    settings = [f"{name}={variables[name]}" if name in variables else f"{name} is not set" for name in names]
    return f"no history found in {provider.summary} ({', '.join(settings)})"


def _reasons(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {_Count(count)}" for reason, count in ordered)


def _some(count: int, what: str) -> str:
    return f"{_Count(count)} {what}" + ("" if count == 1 else "s")


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
