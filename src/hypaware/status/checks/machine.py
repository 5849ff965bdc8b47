"""What the engine needs of the machine: Python, Java, its jars, the class archive."""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from hypaware.engine import archive, jars, java, spark_home
from hypaware.errors import NotReady
from hypaware.status import words
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.view import View

_OLDEST_PYTHON = (3, 11)


def python(view: View) -> Iterator[Check]:
    bits = 8 * struct.calcsize("P")
    detail = f"Python {platform.python_version()} ({bits} bits) at {sys.executable}"
    fits = sys.version_info[:2] >= _OLDEST_PYTHON and bits == 64
    yield ok("python", detail) if fits else failed("python", f"{detail}; needed is 3.11 or later with 64 bits")


def java_runtime(view: View) -> Iterator[Check]:
    try:
        found = java.find(view.environment)
    except NotReady as missing:
        yield failed("java", missing.message, *missing.repair)
        return
    yield ok("java", f"Java {found.version} at {found.executable}")


def engine_jars(view: View) -> Iterator[Check]:
    """Every byte of them, not only what changed."""
    where = jars.folder(view.cache, jars.locked())
    try:
        jars.verify(where, jars.locked())
    except NotReady as wrong:
        there = where.is_dir()
        yield failed("jars", wrong.message if there else f"not installed in {where}", "hyp engine install")
        return
    total = words.size(sum(jar.size for jar in jars.locked()))
    yield ok("jars", f"{words.count(len(jars.locked()), 'jar')}, {total}, each with the hash of its release")


def class_archive(view: View) -> Iterator[Check]:
    try:
        installed = jars.installed(view.cache)
        where = archive.locate(view.cache, java.find(view.environment), spark_home.class_path(installed))
    except NotReady as missing:
        yield warning("class_archive", "there is none: Java or the jars are missing", *missing.repair)
        return
    yield _whole(where)


def _whole(where: Path) -> Check:
    if archive.options(where):
        return ok("class_archive", f"{where.name}, {words.size(where.stat().st_size)}")
    return warning("class_archive", "there is none, so the engine starts at half the speed", "hyp engine install")
