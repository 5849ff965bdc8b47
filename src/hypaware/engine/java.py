"""Finds a Java that can run Spark, or the command that installs one.

The search order is `JAVA_HOME`, `PATH` and, on macOS, the system's registry. The version is read from the `release`
file of the JDK or JRE, because running `java -version` starts a JVM.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hypaware.errors import NotReady

OLDEST = 17
# Java 23 removed Subject.getSubject, which Hadoop in Spark 4.1 calls for every file system.
NEWEST = 22


@dataclass(frozen=True)
class Java:
    executable: Path
    version: str
    build: str
    """Vendor and exact build. A class archive is valid only for the build that wrote it."""

    @property
    def major(self) -> int:
        return major_version(self.version)


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first usable Java. The error names the unusable ones and the install command."""
    unusable: list[Java] = []
    for executable in _candidates(environment):
        java = describe(executable)
        if java is None:
            continue
        if OLDEST <= java.major <= NEWEST:
            return java
        unusable.append(java)
    if unusable:
        found = ", ".join(f"{java.version} at {java.executable}" for java in unusable)
        raise NotReady(
            f"Spark requires Java 17 or 21, but found only {found}", kind="java_unsupported", repair=install_command()
        )
    raise NotReady(
        "Spark requires Java 17 or 21, but none was found in JAVA_HOME or PATH",
        kind="java_missing",
        repair=install_command(),
    )


def describe(executable: Path) -> Java | None:
    """Return the Java, or None if it does not work (on macOS /usr/bin/java may only offer an installer)."""
    executable = executable.resolve()
    try:
        release = (executable.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _ask(executable)
    facts = dict(re.findall(r'^(\w+)="?(.*?)"?$', release, re.MULTILINE))
    version = facts.get("JAVA_VERSION")
    if not version or not executable.is_file():
        return _ask(executable)
    runtime = facts.get("JAVA_RUNTIME_VERSION", version)
    return Java(executable, version, f"{facts.get('IMPLEMENTOR', 'unknown')} {runtime}")


def major_version(version: str) -> int:
    """Return 17 for "17.0.15+6", 21 for "21-ea", 8 for "1.8.0_292", and 0 if it is unknown."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if numbers[:1] == [1] and len(numbers) == 2:
        return numbers[1]
    return numbers[0] if numbers else 0


def install_command(system: str | None = None, os_release: Mapping[str, str] | None = None) -> str:
    system = system or platform.system()
    if system == "Darwin":
        return "brew install openjdk@17 && export JAVA_HOME=$(brew --prefix openjdk@17)"
    if system == "Linux":
        facts = _os_release() if os_release is None else os_release
        family = {facts.get("ID", ""), *facts.get("ID_LIKE", "").split()}
        if family & {"debian", "ubuntu"}:
            return f"sudo apt-get install -y openjdk-{_debian_package(facts)}-jre-headless"
        if family & {"fedora", "rhel", "centos"}:
            return "sudo dnf install -y java-21-openjdk-headless"
    return "Install Java 17 or 21 (any vendor) and set JAVA_HOME to it"


def _debian_package(facts: Mapping[str, str]) -> int:
    """Return the Java version to install: Debian 13 has no Java 17, and Debian 12 has only 17."""
    debian_major = major_version(facts.get("VERSION_ID", ""))
    return 21 if facts.get("ID") == "debian" and debian_major >= 13 else 17


def _os_release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home).expanduser() / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(on_path)
    if sys.platform == "darwin":
        yield from _registered_on_macos()


def _registered_on_macos() -> Iterator[Path]:
    for wanted in ("17", "21"):
        asked = subprocess.run(
            ["/usr/libexec/java_home", "-F", "-v", wanted], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.strip():
            yield Path(asked.stdout.strip()) / "bin" / "java"


def _ask(executable: Path) -> Java | None:
    try:
        asked = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    facts = dict(re.findall(r"^\s+(java\.[\w.]+) = (.*)$", asked.stdout + asked.stderr, re.MULTILINE))
    version = facts.get("java.version")
    if asked.returncode != 0 or not version:
        return None
    runtime = facts.get("java.runtime.version", version)
    return Java(executable, version, f"{facts.get('java.vendor', 'unknown')} {runtime}")
