"""Make sure that Chromium for the tests of the page is installed: install it if no prompt is needed.

Run by `make`; prints nothing if Chromium is installed. Otherwise it prints the command that installs it. That is an
error only if CI is set: elsewhere the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import ensure_java

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_MACOS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def main() -> int:
    if find_chromium():
        return 0
    for step in steps():
        ensure_java.say(f"running: {' '.join(step)}")
        if subprocess.run(step, check=False).returncode != 0:
            break
    if found := find_chromium():
        ensure_java.say(f"found {found}")
        return 0
    ensure_java.say(f"Chromium is not installed: the tests of the page need it\ntry: {install_command()}")
    return 1 if is_required() else 0


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome. CHROMIUM in the environment comes first."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    found = (shutil.which(name) for name in _NAMES)
    return next(filter(None, found), None) or next((path for path in _MACOS if Path(path).exists()), None)


def install_command() -> str:
    if sys.platform == "darwin":
        return "brew install --cask chromium"
    if shutil.which("apt-get"):
        return "sudo apt-get install chromium"
    return "install Chromium with the package manager, or set CHROMIUM to its path"


def is_required() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def steps() -> list[list[str]]:
    """Return the commands that need no prompt; none if there are none. Ubuntu's package only leads to a snap."""
    if not shutil.which("apt-get") or "ubuntu" in _distribution():
        return []
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if become_root and not ensure_java.may_become_root():
        return []
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    return [[*become_root, "apt-get", "update", "-qq"], [*become_root, *install]]


def _distribution() -> str:
    release = Path("/etc/os-release")
    return release.read_text(encoding="utf-8").lower() if release.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
