"""The root of the `hyp` command: the list of its commands, and how one of them is run.

Each command is a click command in the module that `TABLE` names. It prints through `output`, raises `HypError` (or
`output.PartialFailure`) when it fails, and returns an int if its exit code is part of its result. Errors are reported
here and nowhere else.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Sequence

import click

from hypaware import __version__, telemetry
from hypaware.cli import output
from hypaware.cli.command import CommandEntry, RootGroup
from hypaware.home import Home

TABLE = (
    CommandEntry(
        "setup", "hypaware.cli.setup:setup", "Set up HypAware, or repair an existing setup.", aliases=("init",)
    ),
    CommandEntry("status", "hypaware.cli.status:status", "Show what is recorded and delivered, and any problems."),
    CommandEntry("ingest", "hypaware.cli.spool:ingest", "Append rows from a file or a pipe to the spool."),
    CommandEntry("backfill", "hypaware.cli.backfill:backfill", "Import the session history of your clients."),
    CommandEntry(
        "import-cache", "hypaware.cli.import_cache:import_cache", "Import the cache of the JavaScript HypAware."
    ),
    CommandEntry("reproject", "hypaware.cli.reproject:reproject", "Decode the recorded raw exchanges again."),
    CommandEntry("flush", "hypaware.cli.spool:flush", "Commit spooled rows to the lake now."),
    CommandEntry("query", "hypaware.cli.query:query", "Run SQL over the lake; show columns and an overview."),
    CommandEntry(
        "export", "hypaware.cli.export:export", "Deliver rows to the sinks, and show their progress.", aliases=("sync",)
    ),
    CommandEntry("purge", "hypaware.cli.purge:purge", "Delete rows permanently, everywhere in the home."),
    CommandEntry("maintain", "hypaware.cli.maintain:maintain", "Compact the lake, apply retention, expire snapshots."),
    CommandEntry("client", "hypaware.cli.client:client", "Attach clients to the gateway, or detach them."),
    CommandEntry("session", "hypaware.cli.session:session", "Exclude sessions from recording."),
    CommandEntry("hook", "hypaware.cli.client:hook", "Handle a hook event of an attached client.", hidden=True),
    CommandEntry("verify", "hypaware.cli.status:verify", "Check the integrity of the recorded data."),
    CommandEntry("doctor", "hypaware.cli.status:doctor", "Diagnose the machine, the home, clients and sinks."),
    CommandEntry("backup", "hypaware.cli.maintain:backup", "Copy the home to a folder, consistently."),
    CommandEntry("restore", "hypaware.cli.maintain:restore", "Create the home from a backup."),
    CommandEntry("daemon", "hypaware.cli.daemon:daemon", "Run and control the background recorder."),
    CommandEntry("server", "hypaware.cli.server:server", "Receive the sessions of other machines."),
    CommandEntry("engine", "hypaware.cli.engine:engine", "Install, start and stop the Spark process."),
    CommandEntry("config", "hypaware.cli.config:config", "Show, validate and change the configuration."),
    CommandEntry("plugin", "hypaware.cli.installation:plugin", "List plugins and their errors."),
    CommandEntry("dev", "hypaware.cli.installation:dev", "Use tools for developing HypAware."),
    CommandEntry("version", "hypaware.cli.installation:version", "Show the versions of HypAware and its dependencies."),
)


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
    """Record the sessions of your AI agents in a lakehouse on your own machine, and query them with SQL."""


def main(arguments: Sequence[str] | None = None, root: click.Group = hyp) -> int:
    """Run one command and return the exit code of the process."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if "_HYP_COMPLETE" in os.environ:
        root.main(args, prog_name="hyp")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    output.reset_document()
    try:
        return _run_and_report(args, root)
    except BrokenPipeError:
        _silence()
        return 1
    except OSError as error:
        output.note(f"error: cannot write the result: {error.strerror}")
        _silence()
        return 1


def _run_and_report(args: list[str], root: click.Group) -> int:
    """Run the command; print an error if it fails. Raise BrokenPipeError if the reader of our output is gone."""
    try:
        telemetry.configure(Home.from_environment().telemetry)
        # Pass a copy: click removes the arguments that it has parsed, and `asks_for_json` needs them later.
        with root.make_context("hyp", list(args)) as context:
            result = root.invoke(context)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except BrokenPipeError as error:
        if _reader_is_gone():
            raise
        code = output.show_error(error, asks_for_json(args))
    except (Exception, KeyboardInterrupt) as error:
        code = output.show_error(error, asks_for_json(args))
    # Detect a closed output here rather than during the shutdown of the interpreter.
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def asks_for_json(args: Sequence[str]) -> bool:
    """Return whether `--json` was given, even if the arguments cannot be parsed: then the error must be JSON."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def _reader_is_gone() -> bool:
    """Return whether our own output is closed, as in `hyp … | head`, rather than a pipe to a dead engine."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))


def _silence() -> None:
    """Discard buffered output, so that closing the streams cannot fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())
    os.close(null)
