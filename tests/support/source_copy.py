"""A git repository with one commit: the files of this clone as they are now, committed or not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "dist", "build", "__pycache__", ".*_cache", ".hypothesis", "images")


def make_repository(folder: Path) -> Path:
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "all")


def git(folder: Path, *arguments: str) -> str:
    # Neither the user's settings, such as signing, nor the variables of a hook apply.
    environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
