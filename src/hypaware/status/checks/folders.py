"""The home on its disk: who may look into it, what it lies on, how much room is left, whether it keeps what it gets."""

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
# Locks and sockets are made by others as well, and hold nothing.
_OTHERS = 0o077


def permissions(view: View) -> Iterator[Check]:
    root = view.home.root
    if not root.is_dir():
        yield ok("permissions", f"{root} does not exist yet; it will be yours alone")
        return
    about, shown = root.stat(), shlex.quote(str(root))
    if about.st_uid != os.getuid():
        yield failed("permissions", f"{root} belongs to somebody else (user {about.st_uid})", f"ls -ld {shown}")
    elif about.st_mode & _OTHERS:
        yield failed("permissions", f"others may enter {root} ({_mode(about)})", f"chmod -R go= {shown}")
    elif loose := _loose(root):
        what = words.count(len(loose), "file is", "files are")
        said = f"{what} open to others, were it not for the home's own folder: {loose[0]}"
        yield warning("permissions", said, f"chmod -R go= {shown}")
    else:
        yield ok("permissions", f"{root} and all in it is yours alone")


def _loose(root: Path) -> list[Path]:
    found = []
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            try:
                about = path.lstat()
            except OSError:
                continue
            if about.st_mode & _OTHERS and not stat.S_ISLNK(about.st_mode) and not stat.S_ISSOCK(about.st_mode):
                found.append(path)
    return sorted(found)


def _mode(about: os.stat_result) -> str:
    return f"{stat.S_IMODE(about.st_mode):04o}"


def kind_of_disk(view: View) -> Iterator[Check]:
    where = disk.nearest(view.home)
    try:
        file_system.refuse_network(where)
    except NotReady as refused:
        yield failed("file_system", refused.message, *refused.repair)
        return
    yield ok("file_system", f"{file_system.kind_of(where) or 'not a network file system, as far as can be told'}")


def room(view: View) -> Iterator[Check]:
    found = disk.look(view, Lake(), Spool())
    free = f"{words.size(found.facts['free_bytes'])} free of {words.size(found.facts['total_bytes'])}"
    for said in found.diagnostics:
        yield Check("disk", "failed" if said.severity == "error" else "warning", said.message, said.repair)
    if not found.diagnostics:
        yield ok("disk", free)


def keeping(view: View) -> Iterator[Check]:
    """Writes a small file, syncs it, and takes it away again."""
    root = view.home.root
    if not root.is_dir():
        yield ok("sync", "there is no home yet to try it in")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as probe:
            began = time.perf_counter()
            durable.write_all(probe.fileno(), os.urandom(_PROBE_BYTES))
            durable.fsync_fd(probe.fileno())
            taken = time.perf_counter() - began
    except OSError as trouble:
        yield failed(
            "sync", f"nothing can be written to {root}: {trouble.strerror}", f"ls -ld {shlex.quote(str(root))}"
        )
        return
    detail = f"a write is on the disk within {1000 * taken:.1f} ms"
    slow = f"{detail}, which is slow: live recording waits for it"
    yield ok("sync", detail) if taken < _SLOW_SECONDS else warning("sync", slow)
