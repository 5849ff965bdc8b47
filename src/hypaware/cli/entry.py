"""Where the `hyp` command begins: so small that Ctrl-C finds somebody to answer it also while the rest is loading."""

from __future__ import annotations

import os
import sys

_CANCELLED = 130


def run() -> int:
    """The exit code of the process."""
    _open_what_is_closed()
    try:
        from hypaware.cli.main import main

        return main()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"kind": "cancelled", "message": "cancelled"}}\n')
        else:
            sys.stderr.write("cancelled\n")
        return _CANCELLED


def _open_what_is_closed() -> None:
    """Whoever started us may have closed a standard stream. The next file to be opened would get its number, and a
    segment of the spool, say, would receive what a child process prints."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != fd:
                os.dup2(nowhere, fd)
                os.close(nowhere)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8"))
