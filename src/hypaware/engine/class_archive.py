"""The class archive (CDS): Spark's classes, parsed and linked once, which halves the start time of the JVM.

The file is `<cache>/archives/<group>-<key>.jsa`. The group identifies the Spark installation. The key is a hash of the
Java build and of the name, size and mtime of every jar on the class path. The JVM makes the same checks and ignores an
archive that does not match, but a truncated archive crashes it (Java 17: SIGBUS). So `<name>.stamp` records the size
and mtime, and a file that differs is not used. The class path of a JVM may continue after the archive's own, so an
engine with the jars of a shared lake uses the same archive.

An archive is written under a temporary name, fsynced and renamed. A lock on `.lock` serializes builds; after a failed
build, `<name>.failed` prevents background builds for a day.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hypaware.engine import jars, jvm
from hypaware.engine.jvm import Java
from hypaware.home import durable_files
from hypaware.home.locks import locked

_BUILDING: Final = "preparing the class archive"
_RETRY_AFTER: Final = 24 * 3600.0
_UNUSED_AFTER: Final = 30 * 24 * 3600.0


def locate_archive(cache: Path, java_found: Java, class_path: Sequence[Path]) -> Path:
    """Return the path of the archive for this Java and class path, whether or not it exists."""
    group = hashlib.sha256(os.fsencode(jvm.spark_jars_folder())).hexdigest()[:8]
    key = hashlib.sha256(f"{java_found.executable} {java_found.build}\n".encode())
    for jar in class_path:
        status = jar.stat()
        key.update(f"{jar} {status.st_size} {status.st_mtime_ns}\n".encode())
    return cache / "archives" / f"{group}-{key.hexdigest()[:16]}.jsa"


def _current_archive(cache: Path) -> Path:
    return locate_archive(cache, jvm.find_java(), jvm.build_class_path(jars.find_installed_jars(cache)))


def archive_options(archive: Path) -> tuple[str, ...]:
    """Return the JVM options that use the archive, or none if it is missing or differs from its stamp."""
    if not _is_intact(archive):
        return ()
    with suppress(OSError):
        os.utime(archive.with_suffix(".stamp"))
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}")


def ensure_archive(cache: Path, progress: jars.Progress) -> Path | None:
    """Build the archive if it is missing. Return None if this Java cannot build one; sessions then start without it."""
    archive = _current_archive(cache)
    if _is_intact(archive):
        return archive
    durable_files.make_dir(archive.parent)
    with locked(archive.parent / ".lock"):
        if not _is_intact(archive):
            progress(_BUILDING, 0.0, 1.0)
            _build(cache, archive)
            progress(_BUILDING, 1.0, 1.0)
    return archive if _is_intact(archive) else None


def build_in_background(cache: Path) -> None:
    """Start a low-priority process that builds the archive, unless it exists or a build failed within the last day."""
    archive = _current_archive(cache)
    if not _should_build(archive):
        return
    durable_files.make_dir(archive.parent)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(cache)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="archive-build", daemon=True).start()


def _run_background_build(cache: Path) -> None:
    """Build the archive, unless another process is building it."""
    os.nice(15)
    archive = _current_archive(cache)
    with suppress(BlockingIOError), locked(archive.parent / ".lock", wait=False):
        if _should_build(archive):
            _build(cache, archive)


def _build(cache: Path, archive: Path) -> None:
    """Build in a separate process, because this one may already have a session, and a process can have only one."""
    _sweep(archive)
    temporary = archive.with_name(f".building-{os.getpid()}.jsa")
    command = [sys.executable, "-P", "-m", "hypaware.engine.archive_warmup", str(cache), str(temporary)]
    try:
        with (archive.parent / "build.log").open("wb") as log:
            build = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False)
        if build.returncode == 0 and temporary.is_file():
            durable_files.fsync_file(temporary)
            durable_files.write_atomic(archive.with_suffix(".stamp"), _fingerprint(temporary))
            durable_files.rename_durably(temporary, archive)
        else:
            archive.with_suffix(".failed").touch()
    finally:
        temporary.unlink(missing_ok=True)


def _is_intact(archive: Path) -> bool:
    try:
        return archive.with_suffix(".stamp").read_bytes() == _fingerprint(archive)
    except OSError:
        return False


def _fingerprint(archive: Path) -> bytes:
    status = archive.stat()
    return f"{status.st_size} {status.st_mtime_ns}\n".encode()


def _should_build(archive: Path) -> bool:
    """Return whether a background build is needed, and none has failed within the last day."""
    with suppress(FileNotFoundError):
        if time.time() - archive.with_suffix(".failed").stat().st_mtime < _RETRY_AFTER:
            return False
    return not _is_intact(archive)


def _sweep(archive: Path) -> None:
    """Remove archives of the same Spark with another key, and those that no session has used for a month, going by
    the mtime of the stamp. The caller must hold the lock."""
    for leftover in archive.parent.glob(".training-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    group = archive.name.split("-")[0]
    for other in archive.parent.glob("*.jsa"):
        stamp = other.with_suffix(".stamp")
        used = stamp.stat().st_mtime if stamp.exists() else 0.0
        if other.name.startswith((".building-", f"{group}-")) or time.time() - used > _UNUSED_AFTER:
            for path in (other, stamp, other.with_suffix(".failed")):
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    _run_background_build(Path(sys.argv[1]))
