"""Entry of the `hyp` command.

A command is a click command in a module of its own, named in `commands.TABLE`. It raises `HypError` (or
`failure.PartlyFailed`) when it fails, returns an int where the exit code is part of the answer, and prints
through `output`. What goes wrong is reported here, once, in one form.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Sequence

import click

from hypaware import __version__, telemetry
from hypaware.cli import failure, output
from hypaware.cli.commands import TABLE
from hypaware.cli.group import RootGroup
from hypaware.home import Home


@click.group(
    "hyp",
    cls=RootGroup,
    table=TABLE,
    examples=[
        'hyp query sql "SELECT count(*) FROM ai_gateway_messages"',
        "hyp COMMAND --help",
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="hyp", message="%(prog)s %(version)s")
def hyp() -> None:
    """Keep the history of your AI agents in a lakehouse of your own, and ask it in SQL."""


def main(arguments: Sequence[str] | None = None, root: click.Group = hyp) -> int:
    """Runs one command and returns the exit code of the process."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if "_HYP_COMPLETE" in os.environ:
        root.main(args, prog_name="hyp")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    output.begin()
    try:
        return _answer(args, root)
    except BrokenPipeError:
        _silence()
        return 1
    except OSError as error:
        output.note(f"error: the answer could not be written: {error.strerror}")
        _silence()
        return 1


def _answer(args: list[str], root: click.Group) -> int:
    try:
        code = _run(args, root)
    except BrokenPipeError as error:
        if _reader_is_gone():
            raise
        code = failure.show(error, asks_for_json(args))
    except (Exception, KeyboardInterrupt) as error:
        code = failure.show(error, asks_for_json(args))
    # A reader that went away must show here, not in the interpreter's shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def asks_for_json(args: Sequence[str]) -> bool:
    """Also when the arguments cannot be parsed: then the error itself must be JSON."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def _run(args: list[str], root: click.Group) -> int:
    telemetry.configure(Home.from_environment())
    try:
        # A copy: click takes from the list what it has understood, and `--json` must still be there to be asked for.
        with root.make_context("hyp", list(args)) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    return result if isinstance(result, int) else 0


def _reader_is_gone() -> bool:
    """Tells `hyp … | head` from a broken pipe elsewhere, e.g. to an engine that died."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))


def _silence() -> None:
    """What is still buffered goes nowhere, so that closing the streams cannot fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
