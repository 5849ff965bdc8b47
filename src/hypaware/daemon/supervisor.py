"""Supervisors start the daemon at login and restart it when it fails: systemd or launchd behind one protocol.

A supervisor has one service file per home and is controlled through its own command. If that command does not work, as
in a container or after a bare `su`, the supervisor is treated as absent.

The command that starts the daemon names the current interpreter by its path, so that it does not depend on PATH, a
symbolic link or the working directory.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from hypaware.errors import Retryable
from hypaware.home import Home

Notify = Callable[[str], None]
CommandResult = subprocess.CompletedProcess[str]

# How long a supervisor waits for the daemon to end before it kills it; a clean stop takes less.
KILL_AFTER_SECONDS = 120
_CALL_SECONDS = 60.0
# Variables of a terminal or shell: wrong in a process that outlives both.
_TERMINAL_VARIABLES = frozenset(
    (
        *("TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "PWD", "OLDPWD", "_", "_HYP_COMPLETE"),
    )
)
_TERMINAL_PREFIXES = ("TERM_", "ITERM_", "KITTY_", "WEZTERM_")
# Variables that name folders. They are made absolute, because the daemon has another working directory.
FOLDER_VARIABLES = ("HYP_CACHE", "JAVA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME")


class Supervisor(Protocol):
    @property
    def kind(self) -> str:
        """`systemd` or `launchd`."""

    @property
    def name(self) -> str:
        """The name of this home's service."""

    @property
    def path(self) -> Path:
        """The service file."""

    def text(self) -> bytes:
        """Return the contents that the service file should have."""

    def parse_command(self, text: bytes) -> tuple[str, ...] | None:
        """Return the command in a service file, or None if we did not write it for this home."""

    def unavailable_reason(self) -> str | None:
        """Return why the supervisor cannot be used, or None if it can."""

    def enable(self) -> None:
        """Start the daemon at every login from now on. The service file is new or changed."""

    def disable(self) -> None:
        """Stop starting the daemon at login. The daemon itself is already stopped."""

    def clean_up(self) -> None:
        """Remove the leftovers of a removed service file, even if the supervisor does not answer."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Ask the daemon to end without waiting for it; it is not restarted until `start`."""

    def pid(self) -> int | None:
        """Return the pid of the daemon that the supervisor started."""

    def failure(self) -> str | None:
        """Return how the daemon failed, or None if the supervisor knows of no failure."""

    @property
    def log_command(self) -> str:
        """The command that shows the daemon's output."""


def ignore_notice(_: str) -> None:
    pass


def service_suffix(home: Home) -> str:
    """Return a suffix that distinguishes the service files of several homes; empty for the default home."""
    if home.root == (Path.home() / ".hyp").resolve():
        return ""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]


def run_command(*command: str) -> CommandResult:
    """Run a command in the C locale. A missing command or a timeout counts as a failed command."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} is not installed")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} does not answer")


def require_command(*command: str) -> None:
    """Run a command; raise Retryable if it fails."""
    done = run_command(*command)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise Retryable(f"`{' '.join(command)}` failed: {reason}", kind="supervisor_failed")


def hyp_command(*args: str) -> list[str]:
    """Return a `hyp` command line with this interpreter and this installation."""
    return [sys.executable, "-P", "-m", "hypaware.cli", *args]


def is_current_command(command: Sequence[str]) -> bool:
    """Return whether the command runs this program with this interpreter, under any of the interpreter's names."""
    expected = hyp_command()
    there, here = Path(command[0]) if command else Path(), Path(expected[0])
    try:
        return list(command[1:4]) == expected[1:] and there.parent == here.parent and there.samefile(here)
    except OSError:
        return False


def background_environment(home: Home) -> dict[str, str]:
    """Return this process's environment without the variables that belong to its terminal."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _TERMINAL_VARIABLES and not name.startswith(_TERMINAL_PREFIXES)
    }
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(_absolute(part) for part in path.split(os.pathsep) if part)
    return {**kept, **folder_variables(), "HYP_HOME": str(home.root)}


def folder_variables() -> dict[str, str]:
    """Return the variables of `FOLDER_VARIABLES` that are set, as absolute paths."""
    return {name: _absolute(value) for name in FOLDER_VARIABLES if (value := os.environ.get(name))}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
