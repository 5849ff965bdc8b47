"""The jars that the engine adds to Spark's own: pinned in `jars.lock.toml`, fetched once, then offline for ever.

They lie in `<cache>/jars/<key>/`, the key made of versions and hashes, beside `verified.json`, which records size
and mtime of each file at the moment its hash was found right. The folder appears by one rename when all of it is
verified and durable, so it is whole or absent; installers take turns on `<cache>/jars/.lock`.

@ref engine#start
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from importlib import resources
from pathlib import Path

from hypaware import durable
from hypaware.engine import ivy
from hypaware.errors import NotReady

Progress = Callable[[str, float, float], None]
"""What is going on, bytes done, bytes in all."""

_STAMP = "verified.json"
_STAGING = ".staging-"


@dataclass(frozen=True)
class Jar:
    organisation: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


Fetch = Callable[[Sequence[Jar], Path, Progress], None]
"""Brings the jars into the folder under their file names, or raises NotReady("jars_unavailable")."""


@dataclass(frozen=True)
class Installed:
    paths: tuple[Path, ...]
    fetched: bool
    """False where they were all there already."""


@once
def locked() -> tuple[Jar, ...]:
    text = resources.files("hypaware.engine").joinpath("jars.lock.toml").read_text(encoding="utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def folder(cache: Path, jars: Sequence[Jar]) -> Path:
    pinned = "\n".join(f"{jar.organisation}:{jar.name}:{jar.version}:{jar.sha256}" for jar in jars)
    return cache / "jars" / hashlib.sha256(pinned.encode()).hexdigest()[:16]


def installed(cache: Path, jars: Sequence[Jar] | None = None) -> tuple[Path, ...]:
    """The installed jars. Touches no network, and hashes only what changed since it was verified."""
    jars = locked() if jars is None else jars
    where = folder(cache, jars)
    wrong = _unverified(where, jars)
    if wrong:
        raise NotReady(
            f"the engine's jars are not installed in {where} ({', '.join(wrong)})",
            kind="engine_not_installed",
            repair="hyp engine install",
        )
    return tuple(where / jar.file_name for jar in jars)


def install(
    cache: Path, progress: Progress, *, fetch: Fetch = ivy.fetch, jars: Sequence[Jar] | None = None
) -> Installed:
    """Fetches and verifies what is missing; a damaged installation is replaced."""
    jars = locked() if jars is None else jars
    durable.make_dir(cache / "jars")
    with _turn(cache / "jars" / ".lock"):
        where = folder(cache, jars)
        if not _unverified(where, jars):
            return Installed(tuple(where / jar.file_name for jar in jars), fetched=False)
        _sweep(cache / "jars")
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache / "jars"))
        try:
            fetch(jars, staging, progress)
            verify(staging, jars)
            for jar in jars:
                durable.fsync_file(staging / jar.file_name)
            shutil.rmtree(staging / ".ivy", ignore_errors=True)
            _stamp(staging, jars)
            if where.exists():
                where.rename(Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache / "jars")))
            durable.rename(staging, where)
        finally:
            _sweep(cache / "jars")
    total = float(sum(jar.size for jar in jars))
    progress("jars verified", total, total)
    return Installed(tuple(where / jar.file_name for jar in jars), fetched=True)


def verify(where: Path, jars: Sequence[Jar]) -> None:
    """Reads every jar in full and compares its hash with the lock file's."""
    for jar in jars:
        path = where / jar.file_name
        try:
            found = _sha256(path)
        except FileNotFoundError:
            raise NotReady(
                f"{jar.file_name} was not delivered by the repository",
                kind="jars_unavailable",
                repair="hyp engine install",
            ) from None
        if found != jar.sha256:
            raise NotReady(
                f"{jar.file_name} has the hash {found}, the lock file says {jar.sha256}: it is not the released file "
                "and was not installed. Look at what delivered it (mirror, proxy, Ivy cache), then try again",
                kind="jars_hash_mismatch",
                repair="hyp engine install",
            )


def _unverified(where: Path, jars: Sequence[Jar]) -> list[str]:
    """Names of jars that are missing or wrong. Hashes only where size and mtime are not those of the stamp."""
    try:
        stamp = json.loads((where / _STAMP).read_bytes())
    except (OSError, ValueError):
        stamp = {}
    wrong = []
    for jar in jars:
        path = where / jar.file_name
        try:
            seen = path.stat()
        except FileNotFoundError:
            wrong.append(f"{jar.file_name} is missing")
            continue
        unchanged = stamp.get(jar.file_name) == [seen.st_size, seen.st_mtime_ns]
        if seen.st_size != jar.size or not (unchanged or _sha256(path) == jar.sha256):
            wrong.append(f"{jar.file_name} is damaged")
    return wrong


def _stamp(where: Path, jars: Sequence[Jar]) -> None:
    seen = {jar.file_name: (where / jar.file_name).stat() for jar in jars}
    body = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in seen.items()}
    durable.write_file(where / _STAMP, json.dumps(body, indent=1).encode())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(parent: Path) -> None:
    """Removes what a killed installer left; only called by the holder of the lock."""
    for left in parent.glob(f"{_STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
