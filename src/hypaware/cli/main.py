"""The root of the `hyp` command: the list of its commands.

Each command is a click command in the module that `TABLE` names. It prints through `output`, raises `HypError` (or
`output.PartialFailure`) when it fails, and returns an int if its exit code is part of its result. Errors are reported
by `hypaware.cli.entry` and nowhere else.
"""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli.command import CommandEntry, RootGroup

TABLE = (
    CommandEntry("setup", "setup:setup", "Set up HypAware, or repair an existing setup.", aliases=("init",)),
    CommandEntry("status", "status:status", "Show what is recorded and delivered, and any problems."),
    CommandEntry("ingest", "spool:ingest", "Append rows from a file or a pipe to the spool."),
    CommandEntry("backfill", "backfill:backfill", "Import the session history of your clients."),
    CommandEntry("import-cache", "import_cache:import_cache", "Import the cache of the JavaScript HypAware."),
    CommandEntry("reproject", "backfill:reproject", "Decode the recorded raw exchanges again."),
    CommandEntry("flush", "spool:flush", "Commit spooled rows to the lake now."),
    CommandEntry("open", "open:open_", "Show what is recorded in the browser."),
    CommandEntry("sessions", "reader_commands:sessions", "List the recorded sessions."),
    CommandEntry("show", "reader_commands:show", "Read the conversation of a session."),
    CommandEntry("tail", "reader_commands:tail", "Watch sessions while they are recorded."),
    CommandEntry("restore-session", "restore_session:restore_session", "Give a session back to a client."),
    CommandEntry("usage", "reader_commands:usage", "Show tokens and cost by day, project, model and more."),
    CommandEntry("overview", "reader_commands:overview", "Show sessions, tokens, cost and tools at a glance."),
    CommandEntry("search", "reader_commands:search", "Find words in recorded sessions."),
    CommandEntry("query", "query:query", "Run SQL over the lake; show columns and an overview."),
    CommandEntry("export", "export:export", "Deliver rows to the sinks, and show their progress.", aliases=("sync",)),
    CommandEntry("purge", "purge:purge", "Delete rows permanently, everywhere in the home."),
    CommandEntry("maintain", "maintain:maintain", "Compact the lake, apply retention, expire snapshots."),
    CommandEntry("index", "index:index", "Show or rebuild the index of the reading commands."),
    CommandEntry("mcp", "mcp:mcp", "Serve recorded sessions to AI agents."),
    CommandEntry("client", "client:client", "Attach clients to the gateway, or detach them."),
    CommandEntry("session", "session:session", "Exclude sessions from recording."),
    CommandEntry("hook", "client:hook", "Handle a hook event of an attached client.", hidden=True),
    CommandEntry("verify", "status:verify", "Check the integrity of the recorded data."),
    CommandEntry("doctor", "status:doctor", "Diagnose the machine, the home, clients and sinks."),
    CommandEntry("backup", "maintain:backup", "Copy the home to a folder, consistently."),
    CommandEntry("restore", "maintain:restore", "Create the home from a backup."),
    CommandEntry("daemon", "daemon:daemon", "Run and control the background recorder."),
    CommandEntry("server", "server:server", "Receive the sessions of other machines."),
    CommandEntry("engine", "installation:engine", "Install, start and stop the Spark process."),
    CommandEntry("config", "config:config", "Show, validate and change the configuration."),
    CommandEntry("plugin", "installation:plugin", "List plugins and their errors."),
    CommandEntry("dev", "installation:dev", "Use tools for developing HypAware."),
    CommandEntry("upgrade", "upgrade:upgrade", "Show what an upgrade brings and changes."),
    CommandEntry("completion", "help:completion", "Let your shell complete commands and recorded values."),
    CommandEntry("help", "help:help_", "Read the documentation."),
    CommandEntry("version", "installation:version", "Show the versions of HypAware and its dependencies."),
)


@click.group(
    "hyp",
    cls=RootGroup,
    table=TABLE,
    examples=[
        "hyp setup",
        'hyp query sql "SELECT count(DISTINCT session_id) FROM ai_gateway_messages"',
        "hyp COMMAND --help",
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="hyp", message="%(prog)s %(version)s")
def hyp() -> None:
    """Record the sessions of your AI agents in a lakehouse on your own machine, and query them with SQL."""
