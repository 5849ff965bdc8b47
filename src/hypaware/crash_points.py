"""The list of all crash points.

A module declares its crash points with `faults.point`. `MODULES` names those modules, so that the points can be
listed without running anything, and their names without importing anything.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from hypaware import faults
from hypaware.errors import UsageError

# Every module that declares a crash point. A test compares this list with the source.
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

_DECLARED = re.compile(rb'\bfaults\.(?:crash_)?point\(\s*"([^"]+)"')


def all_points() -> list[faults.CrashPoint]:
    for module in MODULES:
        importlib.import_module(module)
    return [point for point in faults.declared() if point.name in names()]


@cache
def names() -> frozenset[str]:
    """Return the names, read from the source text: a few milliseconds, while importing the modules takes seconds."""
    sources = (pkgutil.get_data("hypaware", _file_of(module)) or b"" for module in MODULES)
    return frozenset(name.decode() for source in sources for name in _DECLARED.findall(source))


def check(spec: str) -> None:
    """Raise UsageError if a value of HYP_CRASH_AT names no crash point. Points declared in this process count too."""
    name, _ = faults.parse(spec)
    if name in names() or faults.is_declared(name):
        return
    from difflib import get_close_matches

    matches = get_close_matches(name, sorted(names()), n=1)
    hint = f" Did you mean {matches[0]}?" if matches else ""
    raise UsageError(f"HYP_CRASH_AT={spec}: there is no such crash point.{hint}", repair="hyp dev crash-points")


def _file_of(module: str) -> str:
    return "/".join(module.split(".")[1:]) + ".py"
