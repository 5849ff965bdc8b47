"""Tokens, dollars, and the command that resumes a session."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hypaware.render.facts import format_dollars, format_tokens, quote, resume_command

ID = "0dc91b82-3238-4907-98f3-ae0d1d845b97"


def session(**fields: Any) -> dict[str, Any]:
    return {"session_id": ID, "client": "claude", "cwd": "/home/dev/project", **fields}


def test_tokens_are_short_and_zeros_are_left_out() -> None:
    tokens = {"input": 12, "output": 1234, "cache_read": 5_600_000, "cache_write": 0, "reasoning": 7}

    assert format_tokens(tokens) == "12 in, 1.2k out, 5.6M cache read"
    assert format_tokens({}) == ""


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (1234.5, "$1,234.50"), (0.0042, "$0.0042"), (0.00001, "<$0.0001")]
)
def test_small_amounts_keep_two_digits(amount: float, text: str) -> None:
    assert format_dollars(amount) == text


@pytest.mark.parametrize(
    ("fields", "thread", "command"),
    [
        ({}, None, f"cd /home/dev/project && claude --resume {ID}"),
        ({"cwd": "/home/dev/my project"}, None, f"cd '/home/dev/my project' && claude --resume {ID}"),
        ({"cwd": None}, None, f"claude --resume {ID}"),
        ({"client": "codex"}, None, f"codex resume {ID}"),
        ({"client": "codex"}, "01a1de10-9003", "codex resume 01a1de10-9003"),
        ({"client": "other"}, None, None),
        ({"client": None}, None, None),
        ({"session_id": "x; rm -rf /"}, None, None),
        ({"session_id": "--help"}, None, None),
        ({"session_id": "a\nb"}, None, None),
    ],
)
def test_a_session_is_resumed_in_its_client(fields: dict[str, Any], thread: str | None, command: str | None) -> None:
    assert resume_command(session(**fields), thread) == command


@pytest.mark.hazard(62)
@pytest.mark.parametrize(
    "name",
    ["plain", "with space", "it's", '$HOME `id` "x"', "new\nline", "\x1b[31mred", "\u202eevil", "naïve ☃", "-dash"],
)
def test_a_quoted_folder_is_the_same_folder_for_a_shell(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()

    word = quote(str(folder))

    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"cd {word} && pwd -P"], capture_output=True, check=True)
    assert done.stdout == f"{folder.resolve()}\n".encode()
