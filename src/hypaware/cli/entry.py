"""Start the `hyp` command.

This module imports next to nothing, so that Ctrl-C is handled even while the rest of the program is loading.
"""

from __future__ import annotations

import os
import sys


def run() -> int:
    """Run `hyp` and return the exit code of the process."""
    # Open streams that the parent process closed on the null device. Otherwise the next opened file, for example a
    # segment of the spool, would get the stream's descriptor and receive the output of child processes.
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8"))
    try:
        from hypaware.cli.main import main

        return main()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"kind": "cancelled", "message": "cancelled"}}\n')
        else:
            sys.stderr.write("cancelled\n")
        return 130
