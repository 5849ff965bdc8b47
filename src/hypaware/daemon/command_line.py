"""By which command, and with which environment, the daemon of a home is run when nobody types it.

By the path of the interpreter that runs now: nothing depends on PATH, on a link or on the folder it is called from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hypaware.home import Home

# Of the terminal that a command was typed in, or of the shell there: wrong in a process that outlives both.
_OF_THE_TERMINAL = frozenset(
    (
        *("TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "PWD", "OLDPWD", "_", "_HYP_COMPLETE"),
    )
)
_OF_THE_TERMINAL_TOO = ("TERM_", "ITERM_", "KITTY_", "WEZTERM_")
# Folders that programs are told by the environment. The daemon has another working folder than who starts it.
FOLDERS = ("HYP_CACHE", "JAVA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME")


def hyp(*args: str) -> list[str]:
    """A command of `hyp` with this interpreter and this installation."""
    return [sys.executable, "-P", "-m", "hypaware.cli", *args]


def is_ours(command: Sequence[str]) -> bool:
    """Whether it begins with this interpreter, by whichever of its names, and this program."""
    wanted = hyp()
    there, here = Path(command[0]) if command else Path(), Path(wanted[0])
    try:
        return list(command[1:4]) == wanted[1:] and there.parent == here.parent and there.samefile(here)
    except OSError:
        return False


def environment(home: Home) -> dict[str, str]:
    """What a process in the background gets of this one's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_THE_TERMINAL and not name.startswith(_OF_THE_TERMINAL_TOO)
    }
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(_absolute(part) for part in path.split(os.pathsep) if part)
    return {**kept, **folders(), "HYP_HOME": str(home.root)}


def folders() -> dict[str, str]:
    """Those of `FOLDERS` that are set, without a working folder to depend on."""
    return {name: _absolute(value) for name in FOLDERS if (value := os.environ.get(name))}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
