"""Check the home's permissions, file system, free disk space and write latency."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hypaware import durable, file_system
from hypaware.errors import NotReady
from hypaware.status import disk, words
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.lake import Lake
from hypaware.status.spool import Spool
from hypaware.status.view import View

_PROBE_BYTES = 4096
_SLOW_SECONDS = 0.25
_GROUP_AND_OTHERS = 0o077


def permissions(view: View) -> Iterator[Check]:
    root = view.home.root
    if not root.is_dir():
        yield ok("permissions", f"{root} does not exist yet; only you will have access")
        return
    status, shown = root.stat(), shlex.quote(str(root))
    if status.st_uid != os.getuid():
        yield failed("permissions", f"{root} belongs to another user (uid {status.st_uid})", f"ls -ld {shown}")
    elif status.st_mode & _GROUP_AND_OTHERS:
        yield failed("permissions", f"other users have access to {root} ({_mode(status)})", f"chmod -R go= {shown}")
    elif paths := _accessible_files(root):
        files = words.count(len(paths), "file is", "files are")
        message = f"{files} open to other users and protected only by the home's folder: {paths[0]}"
        yield warning("permissions", message, f"chmod -R go= {shown}")
    else:
        yield ok("permissions", f"only you have access to {root}")


def _accessible_files(root: Path) -> list[Path]:
    found = []
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            if mode & _GROUP_AND_OTHERS and not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode):
                found.append(path)
    return sorted(found)


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def kind_of_disk(view: View) -> Iterator[Check]:
    folder = disk.nearest(view.home)
    try:
        file_system.refuse_network(folder)
    except NotReady as error:
        yield failed("file_system", error.message, *error.repair)
        return
    yield ok("file_system", f"{file_system.kind_of(folder) or 'unknown, but not a known network file system'}")


def room(view: View) -> Iterator[Check]:
    found = disk.look(view, Lake(), Spool())
    free = f"{words.size(found.facts['free_bytes'])} free of {words.size(found.facts['total_bytes'])}"
    for each in found.diagnostics:
        yield Check("disk", "failed" if each.severity == "error" else "warning", each.message, each.repair)
    if not found.diagnostics:
        yield ok("disk", free)


def keeping(view: View) -> Iterator[Check]:
    """Write, sync and remove a small file."""
    root = view.home.root
    if not root.is_dir():
        yield ok("sync", "not tested: the home does not exist yet")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as probe:
            start = time.perf_counter()
            durable.write_all(probe.fileno(), os.urandom(_PROBE_BYTES))
            durable.fsync_fd(probe.fileno())
            elapsed = time.perf_counter() - start
    except OSError as error:
        yield failed("sync", f"cannot write to {root}: {error.strerror}", f"ls -ld {shlex.quote(str(root))}")
        return
    detail = f"a synced write takes {1000 * elapsed:.1f} ms"
    slow = f"{detail}, which is slow: live recording waits for it"
    yield ok("sync", detail) if elapsed < _SLOW_SECONDS else warning("sync", slow)
