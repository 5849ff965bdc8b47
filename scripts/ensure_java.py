"""Make sure that Java for Spark is installed: install it if no prompt is needed, otherwise print the command.

Run by `make`; prints nothing if Java is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hypaware.engine import jvm
from hypaware.errors import NotReady


def main() -> int:
    try:
        jvm.find_java()
        return 0
    except NotReady as missing:
        say(missing.message)
    command = jvm.java_install_command()
    for step in steps(command):
        say(f"running: {' '.join(step)}")
        if subprocess.run(step, check=False).returncode != 0:
            break
    try:
        say(f"found Java {jvm.find_java().version}")
        return 0
    except NotReady as missing:
        say(f"error: {missing.message}")
        say(f"try: {command}")
        return missing.exit_code


def steps(command: str) -> list[list[str]]:
    """Return the commands that need no prompt; none if there are none."""
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
    """Install with Homebrew, and link the Java where macOS looks for it: Homebrew does not register it."""
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
