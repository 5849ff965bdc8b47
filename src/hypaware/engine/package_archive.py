"""The archive that the executors of a cluster run: hypaware with its plugins, and the packages that they need.

`<cache>/executors/hypaware-<key>.zip` holds what is installed for this Python, without Spark, which the cluster has.
The key is a hash of the sizes and times of all its files, and of the Python and the platform, since some packages are
compiled. Spark unpacks the archive on each executor (`spark.archives`). It is written
under a temporary name and renamed. Archives that were not used for a month are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from hypaware import plugins
from hypaware.home import durable_files

_OURS = "hypaware"
# Part of every Spark installation, in the version of the cluster.
_WITH_SPARK = frozenset({"pyspark", "py4j"})
# The optional parts that tasks may need.
_EXTRAS = ("s3",)
_LEFT_OUT = frozenset({"__pycache__", "tests", "include", "examples"})
_UNUSED_AFTER = 30 * 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)")


def ensure_package_archive(cache: Path) -> Path:
    """Return the archive of what is installed now; build it if it is missing."""
    files = dict(_list_files())
    folder = cache / "executors"
    path = folder / f"{_OURS}-{_hash_files(files)}.zip"
    if path.is_file():
        with suppress(OSError):
            os.utime(path)
        return path
    durable_files.make_dir(folder)
    _remove_unused(folder)
    handle, name = tempfile.mkstemp(prefix=".archive-", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            for inside, source in sorted(files.items()):
                made.write(source, inside)
        durable_files.fsync_file(temporary)
        durable_files.rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _list_files() -> Iterator[tuple[str, Path]]:
    """Yield the path in the archive and the file of everything that tasks may import."""
    found = _collect_packages()
    for each in found.values():
        for listed in each.files or ():
            located = Path(str(each.locate_file(listed)))
            if _is_wanted(listed) and listed.suffix != ".pth" and located.is_file():
                yield listed.as_posix(), located
    # Packages that are installed in place are not listed by their distributions.
    modules = {each.module.partition(".")[0] for group in plugins.GROUPS for each in entry_points(group=group)}
    for name in sorted({*modules, _OURS}):
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in Path(folder).rglob("*"):
                inside = PurePosixPath(name, *file.relative_to(folder).parts)
                if file.is_file() and _is_wanted(inside):
                    yield inside.as_posix(), file


def _collect_packages() -> dict[str, Distribution]:
    """Return hypaware, the distributions of its plugins, and all that they need as far as it is installed."""
    pending = [_OURS, *(each.dist.name for group in plugins.GROUPS for each in entry_points(group=group) if each.dist)]
    found: dict[str, Distribution] = {}
    while pending:
        name = _normalize(pending.pop())
        if name in found or name in _WITH_SPARK:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            # For another platform or Python.
            continue
        for requirement in found[name].requires or ():
            extra, needed = _EXTRA.search(requirement), _NAME.match(requirement)
            if needed and (extra is None or (name == _OURS and extra[1] in _EXTRAS)):
                pending.append(needed[0])
    return found


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_wanted(file: PurePosixPath) -> bool:
    return ".." not in file.parts and _LEFT_OUT.isdisjoint(file.parts) and file.suffix not in (".pyc", ".a", ".pyx")


def _hash_files(files: dict[str, Path]) -> str:
    key = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}\n".encode())
    for inside, source in sorted(files.items()):
        status = source.stat()
        key.update(f"{inside} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return key.hexdigest()[:16]


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_AFTER:
                path.unlink()
