"""The search for Java: locations, accepted versions and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware.engine import jvm
from hypaware.errors import NotReady


def java_home(where: Path, version: str, vendor: str = "Debian") -> Path:
    """Create a Java installation with a release file."""
    (where / "bin").mkdir(parents=True)
    (where / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (where / "bin" / "java").chmod(0o755)
    release = f'IMPLEMENTOR="{vendor}"\nJAVA_RUNTIME_VERSION="{version}+6"\nJAVA_VERSION="{version}"\nOS_NAME="Linux"\n'
    (where / "release").write_text(release)
    return where


def program(where: Path, body: str) -> Path:
    where.mkdir(parents=True)
    (where / "java").write_text(f"#!/bin/sh\n{body}\n")
    (where / "java").chmod(0o755)
    return where


def test_java_home_has_priority_over_the_path(tmp_path: Path) -> None:
    chosen = java_home(tmp_path / "chosen", "21.0.2")
    other = java_home(tmp_path / "other", "17.0.9")

    found = jvm.find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})

    assert (found.executable, found.version) == (chosen / "bin" / "java", "21.0.2")
    assert found.build == "Debian 21.0.2+6"


def test_an_unusable_java_home_falls_back_to_the_path(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "1.8.0_292")
    good = java_home(tmp_path / "good", "17.0.9")

    assert jvm.find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).version == "17.0.9"
    assert jvm.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(good / "bin")}).version == "17.0.9"


def test_a_link_to_java_is_resolved_to_find_its_release_file(tmp_path: Path) -> None:
    real = java_home(tmp_path / "jvm" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")

    assert jvm.find_java({"PATH": str(tmp_path / "bin")}).executable == real / "bin" / "java"


def test_a_java_without_a_release_file_is_run_to_find_its_version(tmp_path: Path) -> None:
    says = (
        "echo 'Property settings:' >&2\necho '    java.version = 17.0.1' >&2\n"
        "echo '    java.vendor = Acme' >&2\necho '    java.runtime.version = 17.0.1+12' >&2"
    )
    folder = program(tmp_path / "bin", says)

    found = jvm.find_java({"PATH": str(folder)})

    assert (found.version, found.build) == ("17.0.1", "Acme 17.0.1+12")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.20", "16.0.2", "23.0.1", "25"])
def test_an_unsupported_java_is_reported_with_an_install_command(tmp_path: Path, version: str) -> None:
    home = java_home(tmp_path / "jdk", version)

    with pytest.raises(NotReady) as refused:
        jvm.find_java({"JAVA_HOME": str(home), "PATH": ""})

    assert refused.value.kind == "java_unsupported"
    assert refused.value.exit_code == 3
    assert version in refused.value.message
    assert str(home / "bin" / "java") in refused.value.message
    assert refused.value.repair == (jvm.java_install_command(),)


@pytest.mark.parametrize("body", ["exit 1", "echo no java here", "sleep 0; kill -9 $$"])
def test_a_program_named_java_that_is_not_java_counts_as_missing(tmp_path: Path, body: str) -> None:
    with pytest.raises(NotReady) as refused:
        jvm.find_java({"PATH": str(program(tmp_path / "bin", body))})

    assert refused.value.kind == "java_missing"
    assert refused.value.repair == (jvm.java_install_command(),)


def test_a_missing_java_is_exit_code_3_with_an_install_command(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="17 or 21") as refused:
        jvm.find_java({"PATH": str(tmp_path)})

    assert (refused.value.kind, refused.value.exit_code) == ("java_missing", 3)


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_292", 8), ("22.0.1+8", 22), ("1.7", 7), ("unknown", 0)],
)
def test_the_major_version_is_parsed_from_every_format(version: str, major: int) -> None:
    assert jvm.major_version(version) == major


@pytest.mark.parametrize(
    ("system", "facts", "command"),
    [
        ("Linux", {"ID": "debian", "VERSION_ID": "12"}, "sudo apt-get install -y openjdk-17-jre-headless"),
        ("Linux", {"ID": "debian", "VERSION_ID": "13"}, "sudo apt-get install -y openjdk-21-jre-headless"),
        ("Linux", {"ID": "ubuntu", "VERSION_ID": "24.04"}, "sudo apt-get install -y openjdk-17-jre-headless"),
        ("Linux", {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "sudo apt-get install -y openjdk-17-jre-headless"),
        ("Linux", {"ID": "fedora"}, "sudo dnf install -y java-21-openjdk-headless"),
        ("Linux", {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install -y java-21-openjdk-headless"),
        ("Darwin", {}, "brew install openjdk@17 && export JAVA_HOME=$(brew --prefix openjdk@17)"),
    ],
)
def test_the_install_command_fits_the_platform(system: str, facts: dict[str, str], command: str) -> None:
    assert jvm.java_install_command(system, facts) == command


@pytest.mark.parametrize(("system", "facts"), [("Linux", {"ID": "arch"}), ("Linux", {}), ("FreeBSD", {})])
def test_an_unknown_platform_gets_general_instructions(system: str, facts: dict[str, str]) -> None:
    assert "Java 17 or 21" in jvm.java_install_command(system, facts)
