"""Run one command: errors, exit codes and output streams, whatever parses its arguments.

This module does not import click. Reading commands start without it (see `hypaware.cli.reader_arguments`).
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Sequence

from hypaware import telemetry
from hypaware.cli import output
from hypaware.home import Home


def run_command(args: Sequence[str], call: Callable[[], object]) -> int:
    """Run a command and return the exit code of the process. `call` returns an int if its exit code is its result."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Even if the arguments cannot be parsed, the error must be JSON if `--json` was given.
    as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
    try:
        try:
            telemetry.configure(Home.from_environment().telemetry)
            result = call()
            code = result if isinstance(result, int) else 0
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                raise
            code = output.show_error(error, as_json)
        # Detect a closed output here rather than during the shutdown of the interpreter.
        sys.stdout.flush()
        sys.stderr.flush()
        return code
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            output.note(f"error: cannot write the result: {error.strerror}")
        # Discard buffered output, so that closing the streams cannot fail again.
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(null, stream.fileno())
        os.close(null)
        return 1
    finally:
        output.reset()


def reopen_addresses(args: Sequence[str]) -> None:
    """Let an attached client that calls a closed address work again, whatever command is run."""
    home = Home.from_environment()
    if args[:1] in (["hook"], ["daemon"], ["server"]) or args[:2] == ["client", "detach"]:
        return  # they open the address themselves, or it is not needed any more
    if any((home.root / "clients").glob("*/attach.json")) and not home.backup_note.exists():
        from hypaware.cli import client

        for message in client.reopen_addresses(home):
            output.warn(message)


def _reader_is_gone() -> bool:
    """Return whether our own output is closed, as in `hyp … | head`, rather than a pipe to a dead engine."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))
