"""The engine's jars in one file, to install them on a machine without a network.

A bundle is an uncompressed zip file with `bundle.json` (`{"format": 1, "hypaware": version, "jars": [{"name", "size",
"sha256"}]}`) and `jars/<file name>` for each jar. Only the jars that this version pins are read from it, and only with
the size and the hash that `jars.lock.toml` has: the bundle itself is not trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hypaware import __version__
from hypaware.engine.jars import Fetch, Jar, Progress, find_installed_jars, locked_jars
from hypaware.errors import HypError
from hypaware.home import durable_files

FORMAT = 1
_NAME = "bundle.json"
_READ_BYTES = 1 << 20
_MOST_JSON = 1 << 20
# Zip files store no time before this one. With a fixed time, the same jars give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(file: Path, cache: Path, jars: Sequence[Jar] | None = None) -> int:
    """Write the installed jars into a file, which is replaced atomically, and return its size."""
    jars = locked_jars() if jars is None else jars
    paths = find_installed_jars(cache, jars)
    content = {
        "format": FORMAT,
        "hypaware": __version__,
        "jars": [{"name": jar.file_name, "size": jar.size, "sha256": jar.sha256} for jar in jars],
    }
    with durable_files.replace_atomically(file, 0o644) as fd, os.fdopen(os.dup(fd), "w+b") as target:
        with zipfile.ZipFile(target, "w") as packed:
            packed.writestr(zipfile.ZipInfo(_NAME, _TIME), json.dumps(content, indent=1) + "\n")
            for jar, path in zip(jars, paths, strict=True):
                with path.open("rb") as source, packed.open(zipfile.ZipInfo(_entry(jar), _TIME), "w") as entry:
                    while piece := source.read(_READ_BYTES):
                        entry.write(piece)
        target.flush()
    return file.stat().st_size


def check_bundle(file: Path, jars: Sequence[Jar] | None = None) -> None:
    """Raise HypError unless the file is a bundle with every jar that this version pins, undamaged."""
    for jar in locked_jars() if jars is None else jars:
        _copy(file, jar, None)


def fetch_from(file: Path) -> Fetch:
    """Return a function that takes the jars from the bundle instead of downloading them."""

    def fetch(jars: Sequence[Jar], into: Path, progress: Progress) -> None:
        total, done = float(sum(jar.size for jar in jars)), 0.0
        for jar in jars:
            progress("unpacking the engine's jars", done, total)
            with (into / jar.file_name).open("wb") as target:
                _copy(file, jar, target)
            done += jar.size

    return fetch


def _copy(file: Path, jar: Jar, target: BinaryIO | None) -> None:
    """Read one jar, compare its hash, and write it to the target if there is one."""
    try:
        with zipfile.ZipFile(file) as packed:
            _check_content(file, packed, jar)
            found = hashlib.sha256()
            left = jar.size
            with packed.open(_entry(jar)) as entry:
                # Never read more than the jar has: a compressed entry may claim any size.
                while left and (piece := entry.read(min(_READ_BYTES, left))):
                    found.update(piece)
                    left -= len(piece)
                    if target is not None:
                        target.write(piece)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(file, f"{jar.file_name}: {error}") from error
    if left or found.hexdigest() != jar.sha256:
        raise _damaged(file, f"{jar.file_name} does not have the pinned hash")


def _check_content(file: Path, packed: zipfile.ZipFile, jar: Jar) -> None:
    try:
        info = packed.getinfo(_NAME)
        content = json.loads(packed.read(info)) if info.file_size <= _MOST_JSON else {}
        form, made_by = content["format"], content["hypaware"]
        listed = {(each["name"], each["sha256"]) for each in content["jars"]}
    except (KeyError, TypeError, ValueError) as error:
        raise HypError(
            f"{file} is not a bundle of the engine's jars",
            kind="bundle_foreign",
            repair=f"hyp engine bundle {file.name}",
        ) from error
    if form != FORMAT or (jar.file_name, jar.sha256) not in listed or _entry(jar) not in packed.NameToInfo:
        raise HypError(
            f"{file} was made by HypAware {made_by} and does not have {jar.file_name}, which HypAware {__version__} "
            "needs. Make the bundle with the same version",
            kind="bundle_foreign",
            repair=f"hyp engine bundle {file.name}",
        )


def _damaged(file: Path, reason: str) -> HypError:
    return HypError(
        f"{file} is damaged or not a bundle ({reason}). Nothing was installed. Copy it again, or make it again",
        kind="bundle_damaged",
        repair=f"hyp engine bundle {file.name}",
    )


def _entry(jar: Jar) -> str:
    return f"jars/{jar.file_name}"
