"""Check what the engine needs: Python, Java, its jars, the class archive."""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterator

from hypaware.engine import archive, jars, java, spark_home
from hypaware.errors import NotReady
from hypaware.status import words
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.view import View

_OLDEST_PYTHON = (3, 11)


def python(view: View) -> Iterator[Check]:
    bits = 8 * struct.calcsize("P")
    detail = f"Python {platform.python_version()} ({bits} bits) at {sys.executable}"
    is_supported = sys.version_info[:2] >= _OLDEST_PYTHON and bits == 64
    yield ok("python", detail) if is_supported else failed("python", f"{detail}; 64-bit 3.11 or later is required")


def java_runtime(view: View) -> Iterator[Check]:
    try:
        found = java.find(view.environment)
    except NotReady as missing:
        yield failed("java", missing.message, *missing.repair)
        return
    yield ok("java", f"Java {found.version} at {found.executable}")


def engine_jars(view: View) -> Iterator[Check]:
    """Verify the hash of every jar."""
    folder = jars.folder(view.cache, jars.locked())
    try:
        jars.verify(folder, jars.locked())
    except NotReady as error:
        message = error.message if folder.is_dir() else f"not installed in {folder}"
        yield failed("jars", message, "hyp engine install")
        return
    total = words.size(sum(jar.size for jar in jars.locked()))
    yield ok("jars", f"{words.count(len(jars.locked()), 'jar')}, {total}, all hashes match")


def class_archive(view: View) -> Iterator[Check]:
    try:
        installed = jars.installed(view.cache)
        path = archive.locate(view.cache, java.find(view.environment), spark_home.class_path(installed))
    except NotReady as missing:
        yield warning("class_archive", "missing, because Java or the jars are missing", *missing.repair)
        return
    if archive.options(path):
        yield ok("class_archive", f"{path.name}, {words.size(path.stat().st_size)}")
    else:
        yield warning("class_archive", "missing: the engine starts at half the speed", "hyp engine install")
