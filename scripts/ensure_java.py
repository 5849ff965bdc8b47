"""Makes sure that there is a Java for Spark: installs one where that needs no question, else says which command would.

Run by `make`; it says nothing when Java is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hypaware.engine import java
from hypaware.errors import NotReady


def main() -> int:
    try:
        java.find()
        return 0
    except NotReady as missing:
        say(missing.message)
    command = java.install_command()
    for step in steps(command):
        say(f"running: {' '.join(step)}")
        if subprocess.run(step, check=False).returncode != 0:
            break
    try:
        say(f"found Java {java.find().version}")
        return 0
    except NotReady as missing:
        say(f"error: {missing.message}")
        say(f"try: {command}")
        return missing.exit_code


def steps(command: str) -> list[list[str]]:
    """What can be run without asking anybody; nothing where that is not possible."""
    if sys.platform == "darwin":
        return with_brew() if shutil.which("brew") else []
    if "apt-get" not in command or not shutil.which("apt-get"):
        return []
    package = command.split()[-1]
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if become_root and not may_become_root():
        return []
    return [[*become_root, "apt-get", "update", "-qq"], [*become_root, "apt-get", "install", "-y", "-qq", package]]


def with_brew() -> list[list[str]]:
    """Homebrew keeps its Java to itself; a link in the user's own folder is where macOS looks for others."""
    prefix = subprocess.run(["brew", "--prefix"], capture_output=True, text=True, check=True).stdout.strip()
    known = Path.home() / "Library" / "Java" / "JavaVirtualMachines"
    return [
        ["brew", "install", "openjdk@17"],
        ["mkdir", "-p", str(known)],
        ["ln", "-sfn", f"{prefix}/opt/openjdk@17/libexec/openjdk.jdk", str(known / "openjdk-17.jdk")],
    ]


def may_become_root() -> bool:
    sudo = shutil.which("sudo")
    return sudo is not None and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
