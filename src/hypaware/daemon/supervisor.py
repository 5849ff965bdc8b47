"""Supervisors start the daemon at login and restart it when it fails: systemd or launchd behind one protocol.

A supervisor has one service file per home and is controlled through its own command. If that command does not work, as
in a container or after a bare `su`, the supervisor is treated as absent.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hypaware.errors import Retryable
from hypaware.home import Home

_CALL_SECONDS = 60.0
Tell = Callable[[str], None]
Answer = subprocess.CompletedProcess[str]

# How long a supervisor waits for the daemon to end before it kills it; a clean stop takes less.
STOP_SECONDS = 120


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
        """Remove what is left after the service file was removed, even if the supervisor does not answer."""

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


def unheard(_: str) -> None:
    pass


def of_this_machine(home: Home) -> Supervisor:
    if sys.platform == "darwin":
        from hypaware.daemon.launchd import Launchd

        return Launchd(home)
    from hypaware.daemon.systemd import Systemd

    return Systemd(home)


def text_of(service: Supervisor) -> bytes | None:
    """Return the contents of the service file, or None if it does not exist."""
    try:
        return service.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def in_charge(home: Home, notify: Tell) -> Supervisor | None:
    """Return the supervisor that the daemon is installed with, or None. Notify the user if it does not answer."""
    service = of_this_machine(home)
    text = text_of(service)
    if text is None or service.parse_command(text) is None:
        return None
    if (why := service.unavailable_reason()) is not None:
        notify(f"the daemon is installed as {service.name}, but {service.kind} does not answer ({why}); not using it")
        return None
    return service


def suffix(home: Home) -> str:
    """Return a suffix that distinguishes the service files of several homes; empty for the default home."""
    if home.root == (Path.home() / ".hyp").resolve():
        return ""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]


def ask(*command: str) -> Answer:
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


def tell(*command: str) -> None:
    """Run a command; raise Retryable if it fails."""
    done = ask(*command)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise Retryable(f"`{' '.join(command)}` failed: {reason}", kind="supervisor_failed")
