"""`hyp status`, `hyp verify` and `hyp doctor`: the state of the home, of the recorded data, and of the machine.

`hyp status` prints a line per topic, then each problem with the command that fixes it. Rendering is a pure function of
the document, the time and the terminal's abilities. Stored text is escaped here, before colours, which are terminal
escapes themselves, are added.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.home import Home
from hypaware.text import escape_cell, format_ago, format_count, format_size

_LABEL_WIDTH = 10
_MAX_SOURCES = 6
_COLOURS = {"ok": "green", "degraded": "yellow", "down": "red", "error": "red", "warning": "yellow", "note": "cyan"}

Document = dict[str, Any]


@click.command("status", cls=Command, examples=["hyp status", "hyp status --json", "hyp status --check && echo fine"])
@click.option("--check", is_flag=True, help='Exit 1 unless the status is "ok"; for scripts.')
@json_option
def status(check: bool) -> None:
    """Show the recorded, pending, delivered and retained rows, and the command that fixes each problem.

    It only reads: it starts no Spark, changes nothing and creates no home. "down" means that nothing is being recorded,
    "degraded" that there is a problem or a decision for you to make.
    """
    # The status consists of thousands of small objects that all stay alive: garbage collection would only cost time.
    gc.disable()
    try:
        from hypaware.status.snapshot import collect_snapshot

        now = datetime.now(UTC)
        found = collect_snapshot(Home.from_environment(), now=now)
        document = found.as_json()
        if not output.wants_json():
            look = StatusStyle()
            if sys.stdout.isatty():
                look = StatusStyle(shutil.get_terminal_size().columns, "NO_COLOR" not in os.environ)
            page = "".join(f"{line}\n" for line in render_status(document, now, look))
            output.write_bytes(page.encode(sys.stdout.encoding, "backslashreplace"))
    finally:
        gc.enable()
    if check and found.overall != "ok":
        problems = "; ".join(each.message for each in found.diagnostics if each.severity != "info")
        raise output.PartialFailure(f"{found.overall}: {problems}", document, kind=found.overall)
    output.emit_document(document)


@dataclass(frozen=True)
class StatusStyle:
    width: int | None = None
    """Columns of the terminal; None means unlimited."""
    colours: bool = False


def render_status(document: Document, now: datetime, look: StatusStyle) -> list[str]:
    diagnostics = document["diagnostics"]
    overall = document["overall"]
    problems = sum(each["severity"] != "info" for each in diagnostics)
    text = {
        "ok": "everything is working",
        "degraded": f"{format_count(problems, 'problem')} found",
        "down": "nothing is recorded automatically",
    }[overall]
    home = escape_cell(str(document["home"].get("path")))
    lines = [f"{_styled(overall, look, fg=_COLOURS[overall], bold=True)}: {text} ({home})"]
    if not any(each["kind"] == "not_set_up" for each in diagnostics):
        for label, text in _topics(document, now):
            lines += _wrapped(label, escape_cell(text), look)
    for each in diagnostics:
        label = "note" if each["severity"] == "info" else each["severity"]
        lines += ["", *_wrapped(label, escape_cell(each["message"]), look)]
        lines += [
            f"{'':<{_LABEL_WIDTH + 2}}{_styled(escape_cell(command), look, bold=True)}" for command in each["repair"]
        ]
    return lines


def _topics(document: Document, now: datetime) -> Iterator[tuple[str, str]]:
    from hypaware.status.session_expiry import describe_history

    is_relocated = document["home"].get("whereabouts") in ("moved", "copied")
    yield "recorded", "unknown until the moved home is opened" if is_relocated else _recorded(document["lake"])
    spool, daemon = document["spool"], document["daemon"]
    since = f", the oldest {format_ago(spool['oldest_at'], now)}" if spool["oldest_at"] else ""
    yield "pending", f"{format_count(spool['rows'], 'row')} in the spool{since}" if spool["segments"] else "nothing"
    live = [f"{each['client']} {_client_text(each, now)}" for each in document["clients"] if each["installed"]]
    yield "live", ", ".join(live) or "no client is installed"
    text = "not running"
    if daemon.get("state") == "running":
        text = f"running as process {daemon.get('pid')}"
        if daemon.get("started_at"):
            text += f", started {format_ago(daemon['started_at'], now)}"
        gateway: Document = next((each for each in document["sources"] if each.get("kind") == "live"), {})
        if gateway.get("state") == "listening":
            text += f", gateway on {gateway['listen']}: {format_count(gateway['exchanges'], 'exchange')}"
        page: Document = daemon.get("page") or {}
        if page.get("state") == "listening":
            text += f", page on http://{page['listen']}"
        otlp: Document = next((each for each in document["sources"] if each.get("kind") == "telemetry"), {})
        if otlp.get("state") == "listening":
            text += f", telemetry on {otlp['listen']}: {format_count(otlp['rows'], 'row')}"
    yield "daemon", text
    for client in document["clients"]:
        if client.get("history") and (line := describe_history(client["history"], client["client"])):
            yield "history", line
    if (server := document["server"]).get("state") == "running":
        address = f", listening on {server['listen']}" if server["listen"] else ""
        yield "server", f"running as process {server['pid']}{address}"
    for sink in document["sinks"]:
        if sink["status"] != "removed":
            yield "delivered", f"{sink['sink']}: {_delivered(sink, now)}"
    yield "retention", _retention(document["retention"])
    if disk := document["disk"]:
        used = disk["lake_bytes"] + disk["spool_bytes"] + disk["state_bytes"]
        yield "disk", f"{format_size(used)} used, {format_size(disk['free_bytes'])} free"


def _recorded(lake: Sequence[Document]) -> str:
    """Describe each dataset: rows, days, size and largest sources."""
    if not any(each["rows"] for each in lake):
        return "nothing yet"
    by_dataset: dict[str, list[Document]] = {}
    for each in lake:
        by_dataset.setdefault(each["dataset"], []).append(each)
    texts = []
    for name, sources in by_dataset.items():
        text = f"{name}: " if len(by_dataset) > 1 else ""
        text += format_count(sum(each["rows"] for each in sources), "row")
        if days := sorted(day for each in sources for day in (each["oldest"], each["newest"]) if day):
            text += f" from {days[0]} to {days[-1]}" if days[0] != days[-1] else f" from {days[0]}"
        largest = sorted(sources, key=lambda each: -each["rows"])
        shown = [f"{each['source']} {each['rows']:,}" for each in largest[:_MAX_SOURCES]]
        if len(largest) > _MAX_SOURCES:
            shown.append(f"{len(largest) - _MAX_SOURCES:,} more")
        size = format_size(sum(each["bytes"] for each in sources))
        texts.append(f"{text}, {size} ({', '.join(shown)})")
    return "; ".join(texts)


def _client_text(client: Document, now: datetime) -> str:
    """Describe how a client is recorded: from its transcripts, and through the gateway if it is attached."""
    followed, attached = _follow_text(client.get("follow") or {}, now), _attach_text(client, now)
    return f"{followed}; {attached}" if attached else followed


def _follow_text(follow: Document, now: datetime) -> str:
    if follow.get("state") == "following":
        last = follow.get("last_recorded_at")
        return f"is followed, last recorded {format_ago(last, now)}" if last else "is followed, nothing new yet"
    return {"failing": "cannot be followed", "folder_missing": "has no transcripts yet"}.get(
        str(follow.get("state")), "is not followed"
    )


def _attach_text(client: Document, now: datetime) -> str | None:
    state = client["state"]
    if state == "detached":
        return None
    if state == "recording":
        return f"is recording, last seen {format_ago(client['last_seen_at'], now)}"
    return {
        "attached": "is attached, not seen yet",
        "passing": "is attached but not recorded",
        "broken": "cannot reach the gateway",
        "changed": "no longer points to the gateway",
    }.get(str(state), "state unknown")


def _delivered(sink: Document, now: datetime) -> str:
    delivered = format_count(sink["exported_rows"], "row")
    last = f", last {format_ago(sink['last_success_at'], now)}" if sink["last_success_at"] else ""
    behind = f"{'' if sink['lag_exact'] else 'up to '}{format_count(sink['lag_rows'], 'row')}"
    if sink["status"] == "delivered":
        return f"everything ({delivered}{last})" if sink["streams"] else "nothing to deliver yet"
    if sink["status"] == "behind":
        return f"{delivered}{last}; {behind} pending"
    return f"{sink['status']}; {behind} pending ({delivered} so far{last})"


def _retention(retention: Document) -> str:
    def span(days: int) -> str:
        return format_count(days, "day") if days else "forever"

    if not retention:
        return "unknown"
    default = retention["default_days"]
    others = [each for each in retention["datasets"] if each["days"] != default]
    held = sum(each["rows_held"] for each in retention["datasets"])
    text = "; ".join([span(default), *(f"{each['dataset']} {span(each['days'])}" for each in others)])
    return f"{text}; {format_count(held, 'row')} held longer for sinks" if held else text


def _wrapped(label: str, text: str, look: StatusStyle) -> list[str]:
    head = f"{label:<{_LABEL_WIDTH}}"
    if colour := _COLOURS.get(label):
        head = _styled(head, look, fg=colour)
    room = None if look.width is None else max(20, look.width - _LABEL_WIDTH - 1)
    first, *rest = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if room else [text]
    return [f"{head} {first}", *(f"{'':<{_LABEL_WIDTH}} {line}" for line in rest)]


def _styled(text: str, look: StatusStyle, **style: Any) -> str:
    return click.style(text, **style) if look.colours else text


@click.command("verify", cls=Command, examples=["hyp verify", "hyp verify --deep --json", "hyp verify --repair"])
@click.option("--deep", is_flag=True, help="Read every row instead of a sample.")
@click.option(
    "--repair",
    is_flag=True,
    help="Repair the key index, recorded high-water marks and leftover files, and number rows that have no sequence.",
)
@click.option("--accept-rollback", is_flag=True, help="Accept the loss of recorded rows that the lake no longer has.")
@json_option
def verify(deep: bool, repair: bool, accept_rollback: bool) -> None:
    """Check that every row is stored exactly once and that the lake, its state, index and files agree.

    Exits 1 if a check fails, and prints the finding.
    """
    from hypaware.iceberg import metadata
    from hypaware.lake import health
    from hypaware.state.home_opener import open_home

    home = Home.from_environment()
    has_data = False
    # Never create a home.
    if home.root.is_dir():
        with closing(open_home(home).store) as store:
            has_data = bool(
                metadata.list_tables(home) or health.list_unfinished_datasets(store) or health.has_committed_rows(store)
            )
    if has_data:
        report = run_job("verify", {"deep": deep, "repair": repair, "accept_rollback": accept_rollback})
    else:
        report = {"ok": True, "checks": [{"name": "lake", "ok": True, "detail": "the lake is empty"}]}
    if not output.wants_json():
        rows = [
            ("ok" if check["ok"] else "FAILED", check.get("dataset", ""), check["name"], check["detail"])
            for check in report["checks"]
        ]
        output.emit_table(["", "dataset", "check", "detail"], rows)
    if not report["ok"]:
        failed = [check for check in report["checks"] if not check["ok"]]
        findings = "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
        raise output.PartialFailure(f"verification failed: {findings}", report, kind="verify_failed")
    output.emit_document(report)


@click.command("doctor", cls=Command, examples=["hyp doctor", "hyp doctor --json"])
@json_option
def doctor() -> None:
    """Check everything that HypAware needs: Java, jars, disk, permissions, databases, ports, clients, clocks, sinks.

    This takes a few seconds. It contacts the destinations of the sinks, and writes a small file to the home and removes
    it. Exits 1 if a check fails.
    """
    from hypaware.status.doctor import read_input, run_checks

    with open_progress() as bar:
        found = list(run_checks(read_input(Home.from_environment()), bar.report))
    failed = [check for check in found if check.status == "failed"]
    if not output.wants_json():
        output.emit_table(
            ["", "check", "detail"],
            [
                (check.status if check.status == "ok" else check.status.upper(), check.name, check.detail)
                for check in found
            ],
        )
        for check in found:
            for command in check.repair:
                output.note(f"{check.name}: try {command}")
    report = {"ok": not failed, "checks": [check.as_json() for check in found]}
    if failed:
        findings = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise output.PartialFailure(f"a check failed: {findings}", report, kind="check_failed")
    output.emit_document(report)
