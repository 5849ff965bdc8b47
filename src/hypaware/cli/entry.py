"""Start the `hyp` command.

This module imports next to nothing, so that Ctrl-C is handled even while the rest of the program is loading.
"""

from __future__ import annotations

import os
import sys

_READING = ("sessions", "usage", "overview", "search")


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
        if sys.argv[1:2] and sys.argv[1] in _READING and (code := _read_plainly(sys.argv[1:])) is not None:
            return code
        from hypaware.cli.main import main

        return main()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"kind": "cancelled", "message": "cancelled"}}\n')
        else:
            sys.stderr.write("cancelled\n")
        return 130


def _read_plainly(args: list[str]) -> int | None:
    """Run a reading command without click, whose import takes longer than most answers. None if click must parse."""
    import gc

    # The process ends soon: what is imported now is needed until then.
    gc.disable()
    from hypaware.cli import invocation, output, reader_arguments

    given = reader_arguments.parse_plainly(args)
    if given is None:
        gc.enable()
        return None
    output.reset(as_json=given.pop("as_json"))

    def call() -> None:
        invocation.reopen_addresses(args)
        reader_arguments.run_reading_command(args[0], given)

    return invocation.run_command(args, call)
