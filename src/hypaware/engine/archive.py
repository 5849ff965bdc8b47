"""The class archive: Spark's classes as the JVM has them in memory, parsed and linked once. It halves the start.

`<cache>/archives/<group>-<key>.jsa`. Group: which Spark. Key: the build of Java and name, size and mtime of every jar
on the class path; the JVM makes the same checks and goes on without an archive that is not its own. It does not
survive one that was cut (Java 17: SIGBUS), so `<name>.stamp` records size and mtime, and another file is not used.
Written under another name, fsynced and renamed. Builders take turns on `.lock`; `<name>.failed` keeps the background
from trying again for a day. Archives of the same Spark with another key go when a new one is built, and so do those
that no session has used (touched the stamp of) for a month.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hypaware import durable
from hypaware.engine import jars, java, spark_home
from hypaware.engine.java import Java

_BUILDING: Final = "preparing a fast start"
_RETRY_AFTER: Final = 24 * 3600.0
_UNUSED_AFTER: Final = 30 * 24 * 3600.0


def locate(cache: Path, found: Java, class_path: Sequence[Path]) -> Path:
    """Where the archive for this Java and class path is, or would be."""
    group = hashlib.sha256(os.fsencode(spark_home.spark_jars())).hexdigest()[:8]
    key = hashlib.sha256(f"{found.executable} {found.build}\n".encode())
    for jar in class_path:
        seen = jar.stat()
        key.update(f"{jar} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return cache / "archives" / f"{group}-{key.hexdigest()[:16]}.jsa"


def options(archive: Path) -> tuple[str, ...]:
    """How the JVM is told to use it; nothing where it is not there, or not as it was built."""
    if not _is_whole(archive):
        return ()
    with suppress(OSError):
        os.utime(_stamp(archive))
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}")


def ensure(cache: Path, progress: jars.Progress) -> Path | None:
    """Builds the archive unless it is there. None where this Java cannot make one; sessions then start without."""
    archive = locate(cache, java.find(), spark_home.class_path(jars.installed(cache)))
    if _is_whole(archive):
        return archive
    durable.make_dir(archive.parent)
    with _turn(archive.parent / ".lock", wait=True):
        if not _is_whole(archive):
            progress(_BUILDING, 0.0, 1.0)
            _build(cache, archive)
            progress(_BUILDING, 1.0, 1.0)
    return archive if _is_whole(archive) else None


def ensure_in_background(cache: Path) -> None:
    """Starts a process that builds the archive, at low priority, unless it is there or was tried within a day.
    Any number of callers: one builds, the others' processes end at once."""
    archive = locate(cache, java.find(), spark_home.class_path(jars.installed(cache)))
    if _is_whole(archive) or _tried_lately(archive):
        return
    durable.make_dir(archive.parent)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(cache)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="archive-build", daemon=True).start()


def build_in_turn(cache: Path) -> None:
    """The background process: gives way to whoever builds already."""
    os.nice(15)
    archive = locate(cache, java.find(), spark_home.class_path(jars.installed(cache)))
    with suppress(BlockingIOError), _turn(archive.parent / ".lock", wait=False):
        if not _is_whole(archive) and not _tried_lately(archive):
            _build(cache, archive)


def _build(cache: Path, archive: Path) -> None:
    """In a process of its own: this one may have a session already, and there is one for each process."""
    _sweep(archive)
    temporary = archive.with_name(f".building-{os.getpid()}.jsa")
    command = [sys.executable, "-P", "-m", "hypaware.engine.training", str(cache), str(temporary)]
    try:
        with (archive.parent / "build.log").open("wb") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False)
        if done.returncode == 0 and temporary.is_file():
            durable.fsync_file(temporary)
            durable.write_file(_stamp(archive), _facts(temporary))
            durable.rename(temporary, archive)
        else:
            _failed(archive).touch()
    finally:
        temporary.unlink(missing_ok=True)


def _is_whole(archive: Path) -> bool:
    try:
        return _stamp(archive).read_bytes() == _facts(archive)
    except OSError:
        return False


def _facts(archive: Path) -> bytes:
    seen = archive.stat()
    return f"{seen.st_size} {seen.st_mtime_ns}\n".encode()


def _stamp(archive: Path) -> Path:
    return archive.with_suffix(".stamp")


def _failed(archive: Path) -> Path:
    return archive.with_suffix(".failed")


def _tried_lately(archive: Path) -> bool:
    try:
        return time.time() - _failed(archive).stat().st_mtime < _RETRY_AFTER
    except FileNotFoundError:
        return False


def _sweep(archive: Path) -> None:
    """What the next build makes useless; only called by the holder of the lock."""
    for left in archive.parent.glob(".training-*"):
        shutil.rmtree(left, ignore_errors=True)
    group = archive.name.split("-")[0]
    for other in archive.parent.glob("*.jsa"):
        stamp = _stamp(other)
        used = stamp.stat().st_mtime if stamp.exists() else 0.0
        if other.name.startswith((".building-", f"{group}-")) or time.time() - used > _UNUSED_AFTER:
            for path in (other, stamp, _failed(other)):
                path.unlink(missing_ok=True)


@contextmanager
def _turn(path: Path, *, wait: bool) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


if __name__ == "__main__":
    build_in_turn(Path(sys.argv[1]))
