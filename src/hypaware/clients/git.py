"""Ask git about a folder: the root and remote of its repository.

The folders come from transcripts, so git must have no side effects: no prompt, hook, file watcher or lock. A call may
take two seconds; after three timeouts in a row, git is not called for ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hypaware.home import machine_facts
from hypaware.text import strip_url_credentials

_SECONDS = 2.0
_MAX_TIMEOUTS = 3
_PAUSE_SECONDS = 600.0
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "credential.helper=")


class Repository(NamedTuple):
    repo_root: str | None = None
    remote: str | None = None
    """Without credentials."""


NO_REPOSITORY = Repository()


class Head(NamedTuple):
    sha: str | None = None
    branch: str | None = None
    """None if no branch is checked out."""


def read_repository(cwd: str) -> Repository:
    """Return the repository of a folder; empty if it does not exist, has no repository, or git is too slow."""
    try:
        root = _run_git(cwd, "rev-parse", "--show-toplevel") if Path(cwd).is_dir() else None
        if not root:
            return NO_REPOSITORY
        listed = _run_git(cwd, "config", "--get-regexp", r"^remote\..*\.url$") or ""
        # Lines `remote.<name>.url <url>`: the URL of `origin`, or else of the first remote.
        urls = dict(reversed([line.split(" ", 1) for line in listed.splitlines() if " " in line]))
        url = urls.get("remote.origin.url") or next(reversed(urls.values()), None)
        return Repository(root, strip_url_credentials(url) if url else None)
    except (OSError, ValueError):
        return NO_REPOSITORY


def find_repository(cwd: str) -> Repository:
    """Return the repository in its state at the first call of this process."""
    if machine_facts.is_remote():
        return machine_facts.look_up(read_repository, cwd, default=NO_REPOSITORY)
    return _find_cached(cwd)


@cache
def _find_cached(cwd: str) -> Repository:
    return read_repository(cwd)


forget_repositories = _find_cached.cache_clear


def read_head(cwd: str) -> Head:
    """Return the current commit and branch of a folder. Not cached."""
    try:
        lines = (_run_git(cwd, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD") or "").splitlines()
    except (OSError, ValueError):
        return Head()
    if len(lines) != 2:
        return Head()
    branch = lines[1].removeprefix("refs/heads/")
    return Head(lines[0], branch if branch != lines[1] else None)


class _Timeouts:
    """How often git timed out in a row in this process, and when it did last."""

    count = 0
    last = 0.0


def _run_git(cwd: str, *arguments: str) -> str | None:
    is_paused = _Timeouts.count >= _MAX_TIMEOUTS and time.monotonic() - _Timeouts.last < _PAUSE_SECONDS
    if is_paused or not cwd.startswith("/") or "\0" in cwd:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            ["git", *_QUIET, "-C", cwd, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _Timeouts.count += 1
        _Timeouts.last = time.monotonic()
        return None
    _Timeouts.count = 0
    return ran.stdout.decode("utf-8", "replace").rstrip("\n") if ran.returncode == 0 else None
