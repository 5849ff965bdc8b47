"""The jars that the engine adds to Spark's own: pinned in `jars.lock.toml`, downloaded once, then used offline.

They are in `<cache>/jars/<key>/`. The key is a hash of their versions and hashes. `verified.json` in the same folder
records the size and mtime of each file when its hash was verified. The folder is renamed into place after all files are
verified and durable, so it is complete or absent. A lock on `<cache>/jars/.lock` serializes installations.

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
"""Called with a message, the bytes done and the total bytes."""

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
"""Downloads the jars into the folder under their file names, or raises NotReady (`jars_unavailable`)."""


@dataclass(frozen=True)
class Installed:
    paths: tuple[Path, ...]
    fetched: bool
    """False if all of them were already installed."""


@once
def locked() -> tuple[Jar, ...]:
    text = resources.files("hypaware.engine").joinpath("jars.lock.toml").read_text(encoding="utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def folder(cache: Path, jars: Sequence[Jar]) -> Path:
    pinned = "\n".join(f"{jar.organisation}:{jar.name}:{jar.version}:{jar.sha256}" for jar in jars)
    return cache / "jars" / hashlib.sha256(pinned.encode()).hexdigest()[:16]


def installed(cache: Path, jars: Sequence[Jar] | None = None) -> tuple[Path, ...]:
    """Return the installed jars, without network access. Only files changed since verification are hashed."""
    jars = locked() if jars is None else jars
    where = folder(cache, jars)
    problems = _unverified(where, jars)
    if problems:
        raise NotReady(
            f"the engine's jars are not installed in {where} ({', '.join(problems)})",
            kind="engine_not_installed",
            repair="hyp engine install",
        )
    return tuple(where / jar.file_name for jar in jars)


def install(
    cache: Path, progress: Progress, *, fetch: Fetch | None = None, jars: Sequence[Jar] | None = None
) -> Installed:
    """Download and verify missing jars. A damaged installation is replaced."""
    jars = locked() if jars is None else jars
    durable.make_dir(cache / "jars")
    with _locked(cache / "jars" / ".lock"):
        where = folder(cache, jars)
        if not _unverified(where, jars):
            return Installed(tuple(where / jar.file_name for jar in jars), fetched=False)
        _sweep(cache / "jars")
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache / "jars"))
        try:
            (fetch or ivy.fetch)(jars, staging, progress)
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
    """Compare the hash of every jar with the lock file."""
    for jar in jars:
        path = where / jar.file_name
        try:
            found = _sha256(path)
        except FileNotFoundError:
            raise NotReady(
                f"the repository did not provide {jar.file_name}",
                kind="jars_unavailable",
                repair="hyp engine install",
            ) from None
        if found != jar.sha256:
            raise NotReady(
                f"{jar.file_name} has the hash {found}, but the lock file has {jar.sha256}: it is not the released "
                "file and was not installed. Check the mirror, the proxy or the Ivy cache, then try again",
                kind="jars_hash_mismatch",
                repair="hyp engine install",
            )


def _unverified(where: Path, jars: Sequence[Jar]) -> list[str]:
    """Return a description of each missing or damaged jar. A file that matches the stamp is not hashed."""
    try:
        stamp = json.loads((where / _STAMP).read_bytes())
    except (OSError, ValueError):
        stamp = {}
    problems = []
    for jar in jars:
        path = where / jar.file_name
        try:
            status = path.stat()
        except FileNotFoundError:
            problems.append(f"{jar.file_name} is missing")
            continue
        unchanged = stamp.get(jar.file_name) == [status.st_size, status.st_mtime_ns]
        if status.st_size != jar.size or not (unchanged or _sha256(path) == jar.sha256):
            problems.append(f"{jar.file_name} is damaged")
    return problems


def _stamp(where: Path, jars: Sequence[Jar]) -> None:
    seen = {jar.file_name: (where / jar.file_name).stat() for jar in jars}
    body = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in seen.items()}
    durable.write_file(where / _STAMP, json.dumps(body, indent=1).encode())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(parent: Path) -> None:
    """Remove the leftovers of a killed installation. The caller must hold the lock."""
    for leftover in parent.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
