"""The command and environment that start a home's daemon in the background.

The command names the current interpreter by its path, so that it does not depend on PATH, a symbolic link or the
working directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hypaware.home import Home

# Variables of a terminal or shell: wrong in a process that outlives both.
_TERMINAL_VARIABLES = frozenset(
    (
        *("TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "PWD", "OLDPWD", "_", "_HYP_COMPLETE"),
    )
)
_TERMINAL_PREFIXES = ("TERM_", "ITERM_", "KITTY_", "WEZTERM_")
# Variables that name folders. They are made absolute, because the daemon has another working directory.
FOLDERS = ("HYP_CACHE", "JAVA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME")


def hyp(*args: str) -> list[str]:
    """Return a `hyp` command line with this interpreter and this installation."""
    return [sys.executable, "-P", "-m", "hypaware.cli", *args]


def is_ours(command: Sequence[str]) -> bool:
    """Return whether the command runs this program with this interpreter, under any of the interpreter's names."""
    expected = hyp()
    there, here = Path(command[0]) if command else Path(), Path(expected[0])
    try:
        return list(command[1:4]) == expected[1:] and there.parent == here.parent and there.samefile(here)
    except OSError:
        return False


def environment(home: Home) -> dict[str, str]:
    """Return this process's environment without the variables that belong to its terminal."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _TERMINAL_VARIABLES and not name.startswith(_TERMINAL_PREFIXES)
    }
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(_absolute(part) for part in path.split(os.pathsep) if part)
    return {**kept, **folders(), "HYP_HOME": str(home.root)}


def folders() -> dict[str, str]:
    """Return the variables of `FOLDERS` that are set, as absolute paths."""
    return {name: _absolute(value) for name in FOLDERS if (value := os.environ.get(name))}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
