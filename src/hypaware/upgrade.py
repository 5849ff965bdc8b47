"""What an upgrade brings and what it changes on disk, without doing it.

The other version is a wheel: a file that you name, or the newest one that pip finds; in an environment without pip, uv
runs it. Nothing of the wheel is installed or run. Its changelog, the migrations of its state, the version of its index
and its jars are read from the files in it, and compared with this installation and with the home.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hypaware import __version__
from hypaware.engine import jars
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index import schema as index_schema
from hypaware.state import schema as state_schema
from hypaware.state.snapshot import read_applied_migrations

PIP_SECONDS = 60.0
_VERSION = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:\.dev([0-9]+))?(?:\+.*)?")
_RELEASE_FILES = {
    "changelog": "hypaware/help/changelog.md",
    "state": "hypaware/state/schema.py",
    "index": "hypaware/index/schema.py",
    "jars": "hypaware/engine/jars.lock.toml",
}


@dataclass(frozen=True)
class Release:
    """The facts of one version that matter for an upgrade."""

    version: str
    changelog: str
    migrations: tuple[str, ...]
    index_version: int
    jars: dict[str, int]
    """The size of each jar, by file name."""


def installed_release(changelog: str) -> Release:
    pinned = {jar.file_name: jar.size for jar in jars.locked_jars()}
    migrations = tuple(name for name, _ in state_schema.MIGRATIONS)
    return Release(__version__, changelog, migrations, index_schema.VERSION, pinned)


def read_release(wheel: Path) -> Release:
    """Read the facts from a wheel. Raise HypError if it is not a wheel of HypAware."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            text = {name: packed.read(path).decode() for name, path in _RELEASE_FILES.items()}
            (about,) = (name for name in packed.namelist() if re.fullmatch(r"hypaware-[^/]+\.dist-info/METADATA", name))
            version = str(HeaderParser().parsestr(packed.read(about).decode())["Version"])
        pinned = {jars.Jar(**each).file_name: each["size"] for each in tomllib.loads(text["jars"])["jar"]}
        migrations = tuple(name for name, _ in _constant(text["state"], "MIGRATIONS"))
        return Release(version, text["changelog"], migrations, _constant(text["index"], "VERSION"), pinned)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, SyntaxError) as error:
        raise HypError(f"{wheel} is not a wheel of HypAware: {error}", kind="not_a_wheel") from error


def _constant(source: str, name: str) -> Any:
    """Return a constant of a module without running it. Parts that are computed become None."""
    for node in ast.parse(source).body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == name:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return _literal(node.value)
    raise ValueError(f"it has no {name}")


def _literal(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(each) for each in node.elts)
    return node.value if isinstance(node, ast.Constant) else None


@contextmanager
def newest_wheel() -> Iterator[Path]:
    """Download the newest wheel with pip, with its configuration. Raise HypError with the reason if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check"]
        limits = ["--timeout", "10", "--retries", "1"]
        command = [*_find_pip(), "download", *options, *limits, "--dest", folder, "hypaware"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise HypError(f"pip did not answer within {PIP_SECONDS:g} seconds", kind="pip_failed") from None
        found = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(found) != 1:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
            raise HypError(f"pip found no wheel: {reason}", kind="pip_failed")
        yield found[0]


def _find_pip() -> list[str]:
    """Return the command of pip. An environment that uv made has none, and there uv runs it."""
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    if uv := os.environ.get("UV") or shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise HypError("this environment has no pip, and there is no uv on PATH", kind="pip_failed")


def version_key(version: str) -> tuple[tuple[int, ...], float]:
    """Return a key that sorts versions. A development version sorts before its release."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise HypError(f"{version!r} is not a version of HypAware", kind="bad_version")
    numbers = tuple(int(each) for each in found[1].split("."))
    return numbers, float("inf") if found[2] is None else float(found[2])


def new_entries(before: str, after: str) -> list[str]:
    """Return the entries of a changelog that another one does not have."""
    known = set(_entries(before))
    return [entry for entry in _entries(after) if entry not in known]


def _entries(changelog: str) -> Iterator[str]:
    """Yield each item of a list as one line."""
    entry: list[str] = []
    for line in [*changelog.splitlines(), ""]:
        if entry and not line.startswith("  "):
            yield " ".join(entry)
            entry = []
        if line.startswith("- "):
            entry = [line[2:]]
        elif entry:
            entry.append(line.strip())


def compare(home: Home, installed: Release, offered: Release) -> dict[str, Any]:
    """Return what going from the installed version to the offered one means for the home."""
    applied = read_applied_migrations(home)
    index_version = _index_version(home)
    unknown = sorted(set(applied or ()) - set(offered.migrations))
    changes = []
    if applied is not None:
        changes += [f"state.db gets {name}" for name in offered.migrations if name not in applied]
    if index_version is not None and index_version != offered.index_version:
        changes.append("index.db is built again from the lake, in the background")
    missing = {name: size for name, size in offered.jars.items() if name not in installed.jars}
    if missing:
        changes.append(f"{len(missing)} jars ({sum(missing.values()) / 1e6:.0f} MB) are downloaded into the cache")
    direction = (version_key(offered.version) > version_key(installed.version)) - (
        version_key(offered.version) < version_key(installed.version)
    )
    return {
        "installed": installed.version,
        "offered": offered.version,
        "direction": {1: "upgrade", 0: "same", -1: "downgrade"}[direction],
        "new": new_entries(installed.changelog, offered.changelog),
        "home": str(home.root) if applied is not None else None,
        "changes": changes,
        "irreversible": any(change.startswith("state.db") for change in changes),
        "refused": unknown,
    }


def _index_version(home: Home) -> int | None:
    with suppress(Exception):
        if home.index.is_file():
            with open_readonly(home.index) as connection:
                return int(connection.execute("PRAGMA user_version").fetchone()[0])
    return None
