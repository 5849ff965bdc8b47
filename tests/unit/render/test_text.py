"""A conversation as text: what it shows, what it folds, and that nothing in it reaches the terminal."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hypaware.index.conversation import Thread
from hypaware.render.text import TextStyle, render_text
from hypaware.render.wrap import cut_line, wrap_text
from tests.support.conversations import (
    TOKENS,
    answered,
    at,
    called,
    conversation,
    in_agent,
    message,
    part,
    said,
    typed,
)

EDIT = {"file_path": "/home/dev/project/cart.py", "old_string": "a = 1\nb = 2", "new_string": "a = 1\nb = 3"}
HOSTILE = "\x1b]0;title\x07\x1b[2J\u202egpj.exe\u2066\x9b31m\r\x00"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def shown(*messages: dict[str, object], style: TextStyle | None = None, threads: tuple[Thread, ...] = ()) -> list[str]:
    text = "".join(render_text(conversation(*messages, threads=threads), style or TextStyle()))
    return text.splitlines()


def test_a_conversation_is_shown_as_a_person_reads_it() -> None:
    agent = in_agent("a1", message(6, "user", part("text", "Count them")), said(7, "There are two."))
    found = shown(
        message(0, "user", part("text", "<environment_context>\nx")),
        typed(1, "Fix the cart."),
        message(2, "assistant", part("reasoning", "First I look.\nThen I act.")),
        called(3, "r", "Read", {"file_path": "/home/dev/project/cart.py"}),
        answered(4, "r", "\n".join(f"line {number}" for number in range(10))),
        called(5, "t", "Task", {"description": "Count functions", "prompt": "Count them"}),
        *agent,
        answered(8, "t", "two"),
        called(9, "e", "Edit", EDIT),
        answered(10, "e", "The file was updated."),
        called(11, "b", "Bash", {"command": "make\n  test"}),
        answered(12, "b", "make: *** no rule", failed=True),
        said(13, "Done.", tokens=TOKENS, cost_usd=0.0123),
        threads=(Thread("a1", True, None, "t", at(6)),),
    )

    assert found == [
        "Fix the cart",
        "claude · project · main · claude-opus-5-5 · 2026-11-15 07:00 to 07:00",
        "0dc91b82-3238-4907-98f3-ae0d1d845b97",
        "  context: <environment_context> (2 lines)",
        "",
        "› You  2026-11-15 07:00:01",
        "  Fix the cart.",
        "",
        "● claude-opus-5-5  07:00:02",
        "  ∴ First I look. (2 lines)",
        "",
        "  Read cart.py",
        "  └ line 0",
        "    line 1",
        "    line 2",
        "    line 3",
        "    … 6 more lines",
        "",
        "  Task Count functions",
        "  │",
        "  │ subagent a1",
        "  │",
        "  │ › Prompt  07:00:06",
        "  │   Count them",
        "  │",
        "  │ ● claude-opus-5-5  07:00:07",
        "  │   There are two.",
        "  └ two",
        "",
        "  Edit cart.py +1 -1",
        "      a = 1",
        "    - b = 2",
        "    + b = 3",
        "",
        "  ✗ Bash make test",
        "  └ make: *** no rule",
        "",
        "  Done.",
        "",
        "  ─ 4 tool calls, 1 error, 13 seconds, 3 in, 50 out, 11k cache read, 512 cache write, $0.01",
        "",
        "─" * 72,
        "1 turn, 4 tool calls, 1 error, 1 subagent, 13 seconds",
        "3 in, 50 out, 11k cache read, 512 cache write",
        "$0.42",
        "resume: cd /home/dev/project && claude --resume 0dc91b82-3238-4907-98f3-ae0d1d845b97",
    ]


def test_thinking_and_full_show_what_is_folded() -> None:
    messages = (
        message(0, "user", part("text", "<environment_context>\nthe folder")),
        message(2, "assistant", part("reasoning", "First I look.\nThen I act.")),
        called(3, "r", "Read", {"file_path": "/srv/a", "limit": 5}),
        answered(4, "r", "\n".join(f"line {number}" for number in range(10))),
    )

    thinking = shown(*messages, style=TextStyle(thinking=True))
    full = shown(*messages, style=TextStyle(full=True))

    assert "  Then I act." in thinking
    assert "    line 9" not in thinking
    for line in ("  the folder", "  Then I act.", "    file_path: /srv/a", "    limit: 5", "    line 9"):
        assert line in full


def test_line_ends_of_windows_are_line_ends() -> None:
    found = shown(typed(0, "One\r\nTwo"), called(1, "b"), answered(2, "b", "a\r\nb\r\n"))

    assert found[5:7] == ["  One", "  Two"]
    assert found[10:12] == ["  └ a", "    b"]


def test_thinking_that_the_provider_encrypted_is_not_shown() -> None:
    found = shown(message(0, "assistant", part("reasoning", "EmwKAhgBEgyfake" * 10)), style=TextStyle(full=True))

    assert "  ∴ (encrypted)" in found


def test_times_are_those_of_the_zone_and_a_new_day_is_named() -> None:
    found = shown(
        typed(0, "One"), typed(86_400, "Two"), typed(86_401, "Three"), style=TextStyle(zone=ZoneInfo("Asia/Tokyo"))
    )

    assert [line for line in found if line.startswith("› You")] == [
        "› You  2026-11-15 16:00:00",
        "› You  2026-11-16 16:00:00",
        "› You  16:00:01",
    ]


def test_edits_and_errors_are_coloured_only_if_asked() -> None:
    messages = (called(0, "e", "Edit", EDIT), called(1, "b"), answered(2, "b", "no", failed=True))

    plain, colored = (shown(*messages, style=TextStyle(color=color)) for color in (False, True))

    assert not any("\x1b" in line for line in plain)
    assert "    \x1b[31m- b = 2\x1b[0m".replace("    \x1b[31m", "  \x1b[31m  ") in colored
    assert [SGR.sub("", line) for line in colored] == plain


def test_without_unicode_only_ascii_is_added() -> None:
    found = shown(
        typed(0, "Go"), called(1, "b"), answered(2, "b", "no", failed=True), style=TextStyle(unicode=False, width=60)
    )

    assert "\n".join(found).isascii()


@pytest.mark.hazard(62)
@pytest.mark.parametrize("full", [False, True])
def test_nothing_that_was_recorded_controls_the_terminal(full: bool) -> None:
    args = {HOSTILE: HOSTILE, "command": HOSTILE}
    found = conversation(
        typed(0, HOSTILE),
        message(1, "developer", part("text", HOSTILE)),
        message(2, "assistant", part("reasoning", HOSTILE), part("error", HOSTILE), part("image", HOSTILE)),
        message(3, "assistant", part(HOSTILE, HOSTILE), model=HOSTILE),
        called(4, "a", HOSTILE, args),
        answered(5, "a", HOSTILE),
        called(6, "e", "Edit", {"file_path": HOSTILE, "old_string": HOSTILE, "new_string": HOSTILE + "x"}),
        answered(7, "e", HOSTILE, failed=True),
        called(8, "p", "TodoWrite", {"todos": [{"content": HOSTILE, "status": HOSTILE}]}),
        answered(9, "unknown", HOSTILE),
        *in_agent(HOSTILE, message(10, "user", part("text", HOSTILE))),
        threads=(Thread(HOSTILE, True, None, None, at(10)),),
        title=HOSTILE,
        project=HOSTILE,
        branch=HOSTILE,
        models=[HOSTILE],
        cwd=f"/{HOSTILE}",
        unpriced_models=[HOSTILE],
    )

    for style in (TextStyle(full=full), TextStyle(width=60, full=full), TextStyle(width=60, color=True, full=full)):
        text = SGR.sub("", "".join(render_text(found, style)))
        assert set(re.findall(r"[^\n -~]", text)) <= set("›●∴└✗│─…·")


def test_a_million_characters_in_one_line_are_shown_in_lines() -> None:
    word, words = "x" * 1_000_000, "ab " * 333_333

    for text in (word, words, "あ" * 500_000):
        found = shown(said(0, text), called(1, "b"), answered(2, "b", text), style=TextStyle(width=80))
        # The last line is a command to copy, and stays whole.
        assert max(map(cell_len, found[:-1])) <= 80
    assert sum(line.count("x") for line in shown(said(0, word), style=TextStyle(width=80))) == 1_000_001


@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]) | st.just(" "), max_size=300),
    st.integers(2, 40),
)
def test_wrapped_lines_fit_and_lose_no_word(text: str, width: int) -> None:
    lines = wrap_text(text, width)

    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.text(max_size=100), st.integers(2, 40))
def test_a_cut_line_fits(text: str, width: int) -> None:
    line = text.replace("\n", " ")

    assert cell_len(cut_line(line, width, "…")) <= max(width, 0) or cell_len(line) <= width
