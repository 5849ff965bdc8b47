"""Start the `hyp` command, and run one command: errors, exit codes and output streams, whatever parses its arguments.

This module imports next to nothing, so that Ctrl-C is handled even while the rest of the program is loading, and it
does not import click: reading commands start without it (see `hypaware.cli.reader_arguments`).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import click

_READING = ("sessions", "show", "usage", "overview", "search")


def run(arguments: Sequence[str] | None = None, root: click.Group | None = None) -> int:
    """Run one command and return the exit code of the process.

    By default it is the command of `hyp` that the arguments of the process name.
    """
    _open_closed_streams()
    args = list(sys.argv[1:] if arguments is None else arguments)
    try:
        reads = arguments is None and root is None and bool(args) and args[0] in _READING
        if reads and (plain := _parse_plainly(args)):
            return run_command(args, plain)
        import click

        from hypaware.cli import output
        from hypaware.cli.main import hyp

        root = root or hyp
        if "_HYP_COMPLETE" in os.environ:
            root.main(args, prog_name="hyp")

        def call() -> object:
            try:
                with root.make_context("hyp", args) as context:
                    reopen_addresses(args)
                    return root.invoke(context)
            except click.exceptions.Exit as stop:
                return stop.exit_code

        output.reset()
        return run_command(args, call)
    except KeyboardInterrupt:
        if "--json" in args:
            sys.stdout.write('{"error": {"kind": "cancelled", "message": "cancelled"}}\n')
        else:
            sys.stderr.write("cancelled\n")
        return 130


def _open_closed_streams() -> None:
    """Open streams that the parent process closed on the null device.

    Otherwise the next opened file, for example a segment of the spool, would get the stream's descriptor and receive
    the output of child processes.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8"))


def _parse_plainly(args: list[str]) -> Callable[[], None] | None:
    """Return what runs a reading command without click, whose import takes longer than most answers.

    None if click must parse the arguments.
    """
    import gc

    # The process ends soon: what is imported now is needed until then.
    gc.disable()
    from hypaware.cli import output, reader_arguments

    given = reader_arguments.parse_plainly(args)
    if given is None:
        gc.enable()
        return None
    output.reset(as_json=given.pop("as_json"))

    def call() -> None:
        reopen_addresses(args)
        reader_arguments.run_reading_command(args[0], given)

    return call


def run_command(args: Sequence[str], call: Callable[[], object]) -> int:
    """Run a command and return the exit code of the process. `call` returns an int if its exit code is its result."""
    import io

    from hypaware import telemetry
    from hypaware.cli import output
    from hypaware.home import Home

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
    from hypaware.cli import output
    from hypaware.home import Home

    home = Home.from_environment()
    if args[:1] in (["hook"], ["daemon"], ["server"]) or args[:2] == ["client", "detach"]:
        return  # they open the address themselves, or it is not needed any more
    if any((home.root / "clients").glob("*/attach.json")) and not home.backup_note.exists():
        from hypaware.cli import client

        for message in client.reopen_addresses(home):
            output.warn(message)


def _reader_is_gone() -> bool:
    """Return whether our own output is closed, as in `hyp … | head`, rather than a pipe to a dead engine."""
    import select

    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))
