"""Where the `hyp` command begins: so small that Ctrl-C finds somebody to answer it also while the rest is loading."""

from __future__ import annotations

import sys

_CANCELLED = 130


def run() -> int:
    """The exit code of the process."""
    try:
        from hypaware.cli.main import main

        return main()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"kind": "cancelled", "message": "cancelled"}}\n')
        else:
            sys.stderr.write("cancelled\n")
        return _CANCELLED
