"""A git repository with one commit: the files of this clone that a package is built from, as they are now."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = ("src", "scripts", "docs", "examples")
_FILES = ("pyproject.toml", "requirements.lock", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "images")


def make_repository(folder: Path) -> Path:
    folder.mkdir()
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT)
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "all")


def git(folder: Path, *arguments: str) -> str:
    # Neither the user's settings, such as signing, nor the variables of a hook apply.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
