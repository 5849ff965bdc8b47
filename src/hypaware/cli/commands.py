"""The commands of `hyp`, in the order of its help: all that `hyp --help` needs to know of them."""

from __future__ import annotations

from hypaware.cli.group import Entry

TABLE = (
    Entry("setup", "hypaware.cli.setup:setup", "Set everything up, or put it in order again.", aliases=("init",)),
    Entry("status", "hypaware.cli.status:status", "How everything is, and why not."),
    Entry("ingest", "hypaware.cli.ingest:ingest", "Append rows to the spool; acknowledged is durable."),
    Entry("backfill", "hypaware.cli.backfill:backfill", "Import the history that your clients keep."),
    Entry("import-cache", "hypaware.cli.import_cache:import_cache", "Take over a JavaScript HypAware's cache."),
    Entry("reproject", "hypaware.cli.reproject:reproject", "Raw exchanges through today's decoders."),
    Entry("flush", "hypaware.cli.flush:flush", "Commit the spool to the lake now."),
    Entry("query", "hypaware.cli.query:query", "Ask the lake: SQL, columns, an overview."),
    Entry("export", "hypaware.cli.export:export", "Deliver what waits, and see where it stands.", aliases=("sync",)),
    Entry("purge", "hypaware.cli.purge:purge", "Really remove rows: lake, spool, old snapshots."),
    Entry("maintain", "hypaware.cli.maintain:maintain", "Compaction, retention, expiry: now."),
    Entry("client", "hypaware.cli.client:client", "Point a client at the gateway, and back."),
    Entry("session", "hypaware.cli.session:session", "Keep a session out of the record."),
    Entry("hook", "hypaware.cli.hook:hook", "What the hooks of an attached client run.", hidden=True),
    Entry("verify", "hypaware.cli.verify:verify", "Audit every promise on the data at hand."),
    Entry("doctor", "hypaware.cli.doctor:doctor", "The deeper checks: machine, home, clients, sinks."),
    Entry("backup", "hypaware.cli.backup:backup", "A consistent copy of the home."),
    Entry("restore", "hypaware.cli.restore:restore", "A home from a backup."),
    Entry("daemon", "hypaware.cli.daemon:daemon", "The collector: records, delivers by schedule, keeps the lake."),
    Entry("server", "hypaware.cli.server:server", "Receive the sessions of many machines."),
    Entry("engine", "hypaware.cli.engine:engine", "Install, start, stop the Spark process."),
    Entry("config", "hypaware.cli.config:config", "Show, check and change the configuration."),
    Entry("plugin", "hypaware.cli.plugin:plugin", "What is registered, and what is broken."),
    Entry("dev", "hypaware.cli.dev:dev", "For work on HypAware itself."),
    Entry("version", "hypaware.cli.version:version", "Versions of HypAware and of what it runs on."),
)
