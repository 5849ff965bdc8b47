"""Make sure that zsh and fish for the tests of completion are installed: install them if no prompt is needed.

Run by `make`; prints nothing if they are installed. Otherwise it prints the command that installs them. That is an
error only if CI is set: elsewhere the tests that need them are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from scripts import ensure_chromium, ensure_java

SHELLS = ("zsh", "fish")


def main() -> int:
    if not find_missing():
        return 0
    for step in steps():
        ensure_java.say(f"running: {' '.join(step)}")
        if subprocess.run(step, check=False).returncode != 0:
            break
    if not (missing := find_missing()):
        return 0
    ensure_java.say(f"{' and '.join(missing)} not installed: the tests of completion need it\ntry: {install_command()}")
    return 1 if ensure_chromium.is_required() else 0


def find_missing() -> list[str]:
    return [shell for shell in SHELLS if shutil.which(shell) is None]


def install_command() -> str:
    if sys.platform == "darwin":
        return f"brew install {' '.join(find_missing())}"
    if shutil.which("apt-get"):
        return f"sudo apt-get install {' '.join(find_missing())}"
    return f"install {' '.join(find_missing())} with the package manager"


def steps() -> list[list[str]]:
    """Return the commands that need no prompt; none if there are none."""
    if sys.platform == "darwin":
        return [["brew", "install", "--quiet", *find_missing()]] if shutil.which("brew") else []
    if not shutil.which("apt-get"):
        return []
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if become_root and not ensure_java.may_become_root():
        return []
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *find_missing()]
    return [[*become_root, "apt-get", "update", "-qq"], [*become_root, *install]]


if __name__ == "__main__":
    sys.exit(main())
