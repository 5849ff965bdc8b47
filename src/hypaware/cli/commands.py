"""The commands of `hyp`, in the order of `hyp --help`."""

from __future__ import annotations

from hypaware.cli.group import Entry

TABLE = (
    Entry("setup", "hypaware.cli.setup:setup", "Set up HypAware, or repair an existing setup.", aliases=("init",)),
    Entry("status", "hypaware.cli.status:status", "Show what is recorded and delivered, and any problems."),
    Entry("ingest", "hypaware.cli.ingest:ingest", "Append rows from a file or a pipe to the spool."),
    Entry("backfill", "hypaware.cli.backfill:backfill", "Import the session history of your clients."),
    Entry("import-cache", "hypaware.cli.import_cache:import_cache", "Import the cache of the JavaScript HypAware."),
    Entry("reproject", "hypaware.cli.reproject:reproject", "Decode the recorded raw exchanges again."),
    Entry("flush", "hypaware.cli.flush:flush", "Commit spooled rows to the lake now."),
    Entry("query", "hypaware.cli.query:query", "Run SQL over the lake; show columns and an overview."),
    Entry(
        "export", "hypaware.cli.export:export", "Deliver rows to the sinks, and show their progress.", aliases=("sync",)
    ),
    Entry("purge", "hypaware.cli.purge:purge", "Delete rows permanently, everywhere in the home."),
    Entry("maintain", "hypaware.cli.maintain:maintain", "Compact the lake, apply retention, expire snapshots."),
    Entry("client", "hypaware.cli.client:client", "Attach clients to the gateway, or detach them."),
    Entry("session", "hypaware.cli.session:session", "Exclude sessions from recording."),
    Entry("hook", "hypaware.cli.hook:hook", "Handle a hook event of an attached client.", hidden=True),
    Entry("verify", "hypaware.cli.verify:verify", "Check the integrity of the recorded data."),
    Entry("doctor", "hypaware.cli.doctor:doctor", "Diagnose the machine, the home, clients and sinks."),
    Entry("backup", "hypaware.cli.backup:backup", "Copy the home to a folder, consistently."),
    Entry("restore", "hypaware.cli.restore:restore", "Create the home from a backup."),
    Entry("daemon", "hypaware.cli.daemon:daemon", "Run and control the background recorder."),
    Entry("server", "hypaware.cli.server:server", "Receive the sessions of other machines."),
    Entry("engine", "hypaware.cli.engine:engine", "Install, start and stop the Spark process."),
    Entry("config", "hypaware.cli.config:config", "Show, validate and change the configuration."),
    Entry("plugin", "hypaware.cli.plugin:plugin", "List plugins and their errors."),
    Entry("dev", "hypaware.cli.dev:dev", "Use tools for developing HypAware."),
    Entry("version", "hypaware.cli.version:version", "Show the versions of HypAware and its dependencies."),
)
