from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len

from hypaware.cli import output
from hypaware.cli.jobs import ProgressLines, event_handler

Capture = pytest.CaptureFixture[str]


def test_a_json_document_is_utf8_whatever_its_text(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    document = {"text": "Grüße \x1b \x9b \ud800 \u202e", "path": Path("/a"), "pair": (1, 2), "none": None}

    output.emit_json(document)

    raw = capfdbinary.readouterr().out
    assert b"\x1b" not in raw
    assert "Grüße" in raw.decode()
    assert json.loads(raw) == {"text": document["text"], "path": "/a", "pair": [1, 2], "none": None}


@pytest.mark.parametrize("number", [1, 2**53, 2**70])
def test_a_json_document_looks_the_same_whatever_its_numbers(capfd: Capture, number: int) -> None:
    document = {"list": [number, -0.25, True, None], "empty": [{}, []], "text": 'a "b" \\ ü'}

    output.emit_json(document)

    assert capfd.readouterr().out == json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def test_times_in_json_are_iso_8601_in_utc(capfd: Capture) -> None:
    east = datetime(2026, 1, 1, 2, 0, tzinfo=timezone(timedelta(hours=2)))

    output.emit_json({"at": east, "day": date(2026, 1, 2)})

    assert json.loads(capfd.readouterr().out) == {"at": "2026-01-01T00:00:00Z", "day": "2026-01-02"}


@pytest.mark.hazard(62)
def test_stored_text_is_escaped_for_the_terminal(capfd: Capture) -> None:
    output.emit("\x1b[2J")
    output.emit_fields({"name": "a\nb\x1b[2J"})
    output.emit_table(["text"], [("[bold]x[/bold]\x1b[2J\nnext",)])
    output.note("\x1b[2J")

    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    assert "[bold]x[/bold]\\x1b[2J\\nnext" in out


def test_a_table_without_a_terminal_is_never_truncated(capfd: Capture) -> None:
    long = "x" * 5000

    output.emit_table(["name", "rows", "seen"], [(long, 5, True), ("b", 12345, None)])

    head, _rule, first, second = capfd.readouterr().out.splitlines()
    assert head.split() == ["name", "rows", "seen"]
    assert first.split() == [long, "5", "yes"]
    assert second.split() == ["b", "12345", "-"]
    assert first.index("5  ") == second.index("12345") + 4


def test_a_table_on_a_terminal_splits_neither_words_nor_numbers() -> None:
    session, reason = "b4523ce0-57e2-4c33-a3cf-97f41b6e597e", "the destination refused the rows again and again"
    columns, row = ["session", "rows", "reason"], (session, 123_456_789, reason)

    table = output.format_table(columns, [row], 80)
    assert all(len(line) <= 80 for line in table.splitlines())
    assert {session, "123456789", *reason.split()} <= set(table.split())
    assert len(table.splitlines()) > 3, "the reason takes several lines"

    blocks = output.format_table([*columns, "sink"], [(*row, "x" * 30), (*row, None)], 80)
    assert blocks.splitlines()[1:5] == ["rows     123456789", f"reason   {reason}", f"sink     {'x' * 30}", ""]
    assert output.format_table(columns, [row], None).splitlines()[2].split(maxsplit=2) == [session, "123456789", reason]


def test_a_table_without_rows_still_shows_its_columns(capfd: Capture) -> None:
    output.emit_table(["name", "rows"], [])

    assert capfd.readouterr().out.split()[:2] == ["name", "rows"]


def test_progress_lines_appear_when_the_message_changes_or_every_few_seconds(capfd: Capture) -> None:
    now = [0.0]
    lines = ProgressLines(clock=lambda: now[0])

    for percent in range(100):
        lines.report("reading", percent, 100)
    now[0] = 6.0
    lines.report("reading", 50, 100)
    lines.report("writing")
    lines.report("writing")

    assert capfd.readouterr().err.splitlines() == ["reading 0%", "reading 50%", "writing"]


def handled(capfd: Capture, *events: object, on_chunk: Callable[[bytes], None] = output.write_bytes) -> tuple[str, str]:
    handle = event_handler(ProgressLines(clock=lambda: 0.0), on_chunk)
    for event in events:
        handle(event)  # type: ignore[arg-type]
    out, err = capfd.readouterr()
    return out, err


def test_progress_and_notes_of_a_job_go_to_stderr_and_its_bytes_to_stdout(capfd: Capture) -> None:
    out, err = handled(
        capfd,
        {"event": "progress", "message": "reading", "done": 1, "total": 4, "rows": 7},
        b"first ",
        {"event": "note", "message": "the view is 3 s old"},
        b"second",
        {"event": "something new", "message": "ignored"},
    )

    assert out == "first second"
    assert err == "reading 25%\nthe view is 3 s old\n"


def test_a_command_can_receive_the_bytes_of_a_job(capfd: Capture) -> None:
    taken: list[bytes] = []

    assert handled(capfd, b"a", b"b", on_chunk=taken.append) == ("", "")
    assert taken == [b"a", b"b"]


def test_on_a_terminal_progress_is_a_bar_that_disappears_at_the_end() -> None:
    script = textwrap.dedent(
        r"""
        from hypaware.cli.jobs import open_progress
        with open_progress() as bar:
            for _ in range(2):
                bar.report('reading \x1b[2J', 1, 2)
                bar.report('writing \x1b[2J', 2, 2)
                bar.clear()
        """
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", script], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    drawn = _read_all(ours)

    assert "reading \\x1b[2J" in drawn
    assert "\x1b[2J" not in drawn.replace("\\x1b[2J", "")
    assert "100%" in drawn
    erase_line = "\x1b[2K"
    assert drawn.rpartition("writing")[2].count(erase_line) >= 1


def _read_all(fd: int) -> str:
    """Read the remaining output of a terminal whose other side is closed."""
    chunks = []
    with suppress(OSError):
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks).decode()


def test_times_with_a_zone_are_shown_in_utc(capfd: Capture) -> None:
    output.emit_fields({"at": datetime(2026, 1, 1, tzinfo=UTC)})

    assert capfd.readouterr().out == "at  2026-01-01T00:00:00Z\n"


def test_a_table_without_line_breaks_looks_the_same_as_one_with_them() -> None:
    values: list[object] = [None, 7, 2.5, True, 10**9, "two words", "日本語", "e\u0301", "[bold]x[/bold]", " lead", ""]
    for at in range(len(values)):
        rows = [(values[at], values[at - 1], 1), (None, values[at - 2], 22)]
        cells = [[output._cell(value) for value in row] for row in rows]
        widths = [max(map(cell_len, (name, *column))) for name, *column in zip(("a", "name", "n"), *cells, strict=True)]
        numeric = [output._is_numeric(column) for column in zip(*rows, strict=True)]
        assert output.format_table(("a", "name", "n"), rows, None) == output._wrapped_table(
            ("a", "name", "n"), cells, widths, numeric
        )
