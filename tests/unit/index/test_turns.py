"""What the index calls a turn, an error and a side chain, on the transcripts of real clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.index.prompts import prompt_of
from hypaware.index.store import open_index
from hypaware.state.home_opener import open_home
from tests.support import claude_transcripts, codex_rollouts
from tests.support.index_oracle import read_sessions
from tests.support.light_home import import_history

CLAUDE = {
    "406dc910": (3, "Remember: the colour is blue."),
    # /compact is a turn; the notes that the client adds to it and the summary are not.
    "4af1ebce": (3, "Remember: the colour is blue."),
    "6f94fccb": (1, "Echo one, then two."),
    "676356ff": (1, "Use two agents to inspect this repository."),
    "8dff60ef": (2, "Show the recent commits and comment sub()"),
    "ce8bc667": (2, "Print hi, edit calc.py, count functions."),
    # Only a subagent's file of this session exists.
    "c4ed9bdc": (0, None),
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    open_home(home).store.close()
    return home


def test_turns_of_claude_code(home: Home, tmp_path: Path) -> None:
    claude_transcripts.unpacked(tmp_path / "claude" / "projects")
    import_history(home, {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "HOME": str(tmp_path)})
    with open_index(home) as index:
        found = {key[0][:8]: figures for key, figures in read_sessions(index).items()}
    for session, (turns, prompt) in CLAUDE.items():
        assert (found[session][3], found[session][-1]) == (turns, prompt), session
    errors = {session: figures[7] for session, figures in found.items() if figures[7]}
    assert "14fe5d5c" in errors, "a session with failed tools"


def test_turns_of_codex(home: Home, tmp_path: Path) -> None:
    for name in codex_rollouts.sample_names():
        path = tmp_path / "codex" / "sessions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(codex_rollouts.sample(name))
    import_history(home, {"CODEX_HOME": str(tmp_path / "codex"), "HOME": str(tmp_path)}, "codex")
    with open_index(home) as index:
        found = {key[0]: (figures[3], figures[-1]) for key, figures in read_sessions(index).items()}
    assert found, "the samples have sessions"
    prompts = {prompt for _, prompt in found.values()}
    assert not any(prompt and prompt.startswith(("<environment_context>", "# AGENTS.md")) for prompt in prompts)
    assert "Print hi and add a docstring to add()." in prompts
    assert all(turns >= 1 for turns, prompt in found.values() if prompt)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Fix it", "Fix it"),
        ("<command-name>/review</command-name>\n<command-args>main</command-args>", "/review main"),
        ("<command-message>x</command-message><command-name>/clear</command-name>", "/clear"),
        ("<bash-input>ls -l</bash-input>", "!ls -l"),
        ("<command-name>", "<command-name>"),
    ],
)
def test_a_command_is_shown_as_it_was_typed(text: str, prompt: str) -> None:
    assert prompt_of(text) == prompt
