"""What starts the daemon with the user's login, and again when it dies: systemd or launchd, behind one seam.

A supervisor has one file for each home, named after it, and answers through its own command. It may be there and not
answer, as in a container or over a bare `su`: then it counts as not there.
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

# Longer than a daemon takes to end in peace; then the supervisor may kill it.
STOP_SECONDS = 120


class Supervisor(Protocol):
    @property
    def kind(self) -> str:
        """`systemd` or `launchd`."""

    @property
    def name(self) -> str:
        """What it calls the daemon of this home."""

    @property
    def path(self) -> Path:
        """Its file."""

    def text(self) -> bytes:
        """What belongs in the file today."""

    def command_in(self, text: bytes) -> tuple[str, ...] | None:
        """The command in such a file, if we wrote it for this home."""

    def why_not(self) -> str | None:
        """Why it cannot be used; None if it can."""

    def enable(self) -> None:
        """The file is there, new or changed: from now on the daemon starts with the login."""

    def disable(self) -> None:
        """No more; the daemon itself is stopped already."""

    def forget(self) -> None:
        """The file is gone: so is what else is left of it. Also where the supervisor does not answer."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Asks the daemon to end, and does not wait for it; nothing is started again until `start`."""

    def pid(self) -> int | None:
        """Of the daemon that it started."""

    def trouble(self) -> str | None:
        """That the daemon died and what of it is known; None while nothing is known of that."""

    @property
    def look(self) -> str:
        """The command that shows what the daemon said."""


def unheard(_: str) -> None:
    pass


def of_this_machine(home: Home) -> Supervisor:
    if sys.platform == "darwin":
        from hypaware.daemon.launchd import Launchd

        return Launchd(home)
    from hypaware.daemon.systemd import Systemd

    return Systemd(home)


def text_of(found: Supervisor) -> bytes | None:
    """What is in its file; None if there is none."""
    try:
        return found.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def in_charge(home: Home, tell: Tell) -> Supervisor | None:
    """The supervisor that the daemon is installed with, where it answers. `tell` hears that it does not."""
    found = of_this_machine(home)
    text = text_of(found)
    if text is None or found.command_in(text) is None:
        return None
    if (why := found.why_not()) is not None:
        tell(f"the daemon is installed as {found.name}, but {found.kind} does not answer ({why}): done without it")
        return None
    return found


def suffix(home: Home) -> str:
    """Tells homes apart where all lie in one folder; nothing for the home that a user has by default."""
    if home.root == (Path.home() / ".hyp").resolve():
        return ""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]


def ask(*command: str) -> Answer:
    """In the language that programs speak. A command that is not there has failed like any other."""
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
        return subprocess.CompletedProcess(command, 127, "", f"there is no {command[0]} here")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} does not answer")


def tell(*command: str) -> None:
    """Raises where it fails."""
    done = ask(*command)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise Retryable(f"`{' '.join(command)}` failed: {said}", kind="supervisor_failed")
