"""All crash points of the program. A module declares its own with `faults.point`; here it is named, so that
a list of them can be made without running anything."""

from __future__ import annotations

import importlib

from hypaware import faults

# Every module that calls `faults.point`; a test compares this with the source.
MODULES = (
    "hypaware.capture.opt_outs",
    "hypaware.capture.recorder",
    "hypaware.capture.seen_folders",
    "hypaware.capture.storing",
    "hypaware.clients.attach",
    "hypaware.clients.settings_file",
    "hypaware.daemon.installing",
    "hypaware.export.replay",
    "hypaware.export.round",
    "hypaware.export.shipping",
    "hypaware.export.sinks.blob.folder",
    "hypaware.export.sinks.blob.sink",
    "hypaware.export.sinks.forward.tokens",
    "hypaware.export.sinks.iceberg.table",
    "hypaware.lake.flush",
    "hypaware.lake.intake",
    "hypaware.lake.keys",
    "hypaware.lake.landing",
    "hypaware.lake.prepare",
    "hypaware.lake.rejects",
    "hypaware.lake.relocate",
    "hypaware.lake.secure",
    "hypaware.lake.settlements",
    "hypaware.lake.tombstones",
    "hypaware.maintain.backup",
    "hypaware.maintain.compact",
    "hypaware.maintain.expire",
    "hypaware.maintain.generation",
    "hypaware.maintain.orphans",
    "hypaware.maintain.purge.free_pages",
    "hypaware.maintain.purge.letters",
    "hypaware.maintain.purge.run",
    "hypaware.maintain.purge.spooled",
    "hypaware.maintain.purge.sweep",
    "hypaware.maintain.purge.table_rows",
    "hypaware.maintain.rebuild",
    "hypaware.maintain.restore",
    "hypaware.maintain.retain",
    "hypaware.reprojection.adding",
    "hypaware.server.group_commit",
    "hypaware.server.incoming",
    "hypaware.server.signing",
    "hypaware.setup.configuring",
    "hypaware.spool.active",
    "hypaware.spool.repair",
    "hypaware.state.mirror",
    "hypaware.state.store",
    "hypaware.takeover.take_in",
)


def all_points() -> list[faults.CrashPoint]:
    for module in MODULES:
        importlib.import_module(module)
    packages = {module.split(".")[1] for module in MODULES}
    return [point for point in faults.declared() if point.package in packages]
