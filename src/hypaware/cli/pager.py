"""The pager of a command with long output: `PAGER`, or less. On anything but a terminal, there is none.

The pager gets the output while it is made. If it ends before that, the command ends too, without an error. Ctrl-C is
the pager's own key.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

_LESS_OPTIONS = "FRX"
"""Quit if the output fits on the screen; show colours; leave the output on the screen."""


def print_paged(pieces: Iterable[str]) -> None:
    """Print the pieces, through the pager if stdout is a terminal."""
    pager = find_pager() if sys.stdout.isatty() else None
    if pager is None:
        for piece in pieces:
            sys.stdout.write(piece)
        return
    import subprocess

    sys.stdout.flush()
    environment = {**os.environ}
    # A user's own options are kept, but without -R, less would print the colours as text.
    environment["LESS"] = f"{given} -R" if (given := environment.get("LESS")) else _LESS_OPTIONS
    process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        encoding = sys.stdout.encoding or "utf-8"
        try:
            for piece in pieces:
                process.stdin.write(piece.encode(encoding, "backslashreplace"))
        except BrokenPipeError:
            pass
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def find_pager() -> str | None:
    """Return the command of the pager, for a shell; None if there is none."""
    chosen = os.environ.get("PAGER")
    if chosen is not None:
        return chosen if chosen.strip() not in ("", "cat") else None
    import shutil

    return "less" if os.environ.get("TERM") != "dumb" and shutil.which("less") else None
