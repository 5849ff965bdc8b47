"""`hyp sessions`: filters, the table on a terminal and in a pipe, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from hypaware.cli import columns
from hypaware.home import Home
from tests.support.index_home import SONNET, make_home, prompt, response
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
FIRST, SECOND = "0dc91b82-3238-4907-98f3-ae0d1d845b97", "7f7951bf-398c-4472-a66f-7449c1656bf1"


@pytest.fixture(autouse=True)
def sessions_(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    long_title = "Add a cart to the shop, with a total, a voucher and a button that empties it again after a question"
    result: dict[str, Any] = {
        "part_type": "tool_result",
        "is_error": True,
        "tool_name": "Bash",
        "content_text": "refused",
    }
    make_home(
        home.root,
        prompt(1, long_title, at="2026-11-14T08:00:00Z", session_id=FIRST, git_branch="cart"),
        response(2, at="2026-11-14T08:05:00Z", session_id=FIRST, usage={"output_tokens": 100_000}, model=SONNET),
        prompt(3, "Why?", at="2025-11-15T08:00:00Z", session_id=SECOND, client_name="codex", cwd="/home/dev/shop"),
        response(4, at="2025-11-15T10:05:00Z", session_id=SECOND, client_name="codex", cwd="/home/dev/shop", **result),
    )


def ids(hyp: Run, *options: str) -> list[str]:
    code, out, _ = hyp("sessions", "--json", *options)
    assert code == 0
    return [each["session_id"] for each in json.loads(out)["sessions"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [FIRST, SECOND]),
        (("--limit", "1"), [FIRST]),
        (("--limit", "0"), [FIRST, SECOND]),
        (("--errors",), [SECOND]),
        (("--grep", "voucher"), [FIRST]),
        (("--grep", "refused", "--client", "codex"), [SECOND]),
        (("--grep", "voucher", "--client", "codex"), []),
        (("--project", "web"), [FIRST]),
        (("--project", "/home/dev"), [FIRST, SECOND]),
        (("--client", "codex"), [SECOND]),
        (("--model", "claude-sonnet"), [FIRST]),
        # 08:05 in UTC is 09:05 in Berlin.
        (("--since", "2026-11-14T09:05"), [FIRST]),
        (("--since", "2026-11-14T09:05:00.000001"), []),
        (("--until", "2025-11-15T09:00", "--timezone", "Europe/Berlin"), [SECOND]),
        (("--until", "2025-11-15T09:00", "--timezone", "Asia/Tokyo"), []),
        (("--sort", "length", "--limit", "1"), [FIRST]),
        # A Saturday in 2026, and a Saturday in 2025.
        (("--weekday", "sat", "--since", "2026-01-01"), [FIRST]),
        (("--weekday", "sun"), []),
        (("--hour", "9", "--timezone", "Europe/Berlin", "--since", "2026-01-01"), [FIRST]),
        (("--hour", "10", "--timezone", "Europe/Berlin", "--since", "2026-01-01"), []),
        (("--tool", "Bash"), []),
        (("--failed", "Bash"), [SECOND]),
        (("--failed", "Bash", "--client", "claude"), []),
    ],
)
def test_sessions_are_filtered_and_newest_first(hyp: Run, options: tuple[str, ...], expected: list[str]) -> None:
    assert ids(hyp, *options) == expected


def test_in_a_pipe_every_column_is_complete(hyp: Run) -> None:
    code, out, err = hyp("sessions")

    head, first, second = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == [
        *("id", "when", "project", "title", "branch", "client", "model"),
        *("turns", "tools", "errors", "tokens", "cost", "lasted"),
    ]
    assert first.startswith(f"{FIRST}  2026-11-14T09:05:00+01:00  web      Add a cart")
    assert first.endswith(f"cart    claude  {SONNET}      1      0       0    100k  $1.50      5m")
    assert second.split()[-3:] == ["0", "-", "2h05"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_on_a_terminal_the_table_fits_the_width(hyp: Run, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(columns, "terminal_width", lambda: width)

    _, out, _ = hyp("sessions")

    assert max(map(cell_len, out.splitlines())) <= width
    assert FIRST[:8] in out
    if width >= 80:
        head, first, second = out.splitlines()
        assert head.split()[:4] == ["id", "when", "project", "title"]
        assert "Nov 14 09:05" in first
        assert "2025-11-15" in second
        assert "$1.50" in first
        assert "Add a cart to the" in first


def test_on_a_terminal_a_long_list_says_that_it_was_cut(hyp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "terminal_width", lambda: 80)

    code, out, err = hyp("sessions", "--limit", "1")

    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "showing only 1 of 2 sessions; to see all: --limit 0\n"
    assert (
        hyp("sessions", "--limit", "1", "--since", "2020-01-01")[2] == "showing only 1 session; to see all: --limit 0\n"
    )


def test_a_list_without_a_match_says_which_filter_matches_nothing(hyp: Run) -> None:
    code, out, err = hyp("sessions", "--client", "codx")

    assert (code, out) == (0, "no session matches\n")
    assert err == "no recorded session has the client codx. Did you mean codex? Known: claude, codex.\n"
    assert hyp("sessions", "--client", "codx", "--json")[1] == '{\n  "sessions": []\n}\n'


@pytest.mark.parametrize(
    "options",
    [
        *(["--since", "1d", "--until", "2d"], ["--since", "soon"], ["--timezone", "Mars/Base"], ["--sort", "size"]),
        *(["--limit", "-1"], ["--limit", "many"]),
    ],
)
def test_wrong_options_are_wrong_usage(hyp: Run, options: list[str]) -> None:
    code, out, _ = hyp("sessions", "--json", *options)

    assert code == 2
    assert "error" in json.loads(out)


@pytest.mark.hazard(62)
def test_stored_text_is_escaped_for_the_terminal(hyp: Run, home: Home) -> None:
    make_home(home.root, prompt(9, "\x1b]0;evil\x07 \u202e x", at="2026-11-15T08:00:00Z", session_id="\x1b[2Jabcdefgh"))

    _, out, _ = hyp("sessions")

    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\\x1b]0;evil" in out
