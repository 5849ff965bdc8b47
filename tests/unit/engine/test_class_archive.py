"""Class archives: the archive of each Java and class path, and stale archives. tests/spark tests the build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hypaware.engine import class_archive
from hypaware.engine.jvm import Java

JAVA = Java(Path("/opt/java/bin/java"), "17.0.15", "Debian 17.0.15+6")


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"classes")
    return path


def test_the_same_java_and_jars_use_the_same_archive(tmp_path: Path, jar: Path) -> None:
    assert class_archive.locate_archive(tmp_path, JAVA, [jar]) == class_archive.locate_archive(tmp_path, JAVA, [jar])


@pytest.mark.parametrize(
    "other",
    [
        Java(JAVA.executable, "17.0.16", "Debian 17.0.16+8"),
        Java(JAVA.executable, "17.0.15", "Acme 17.0.15+6"),
        Java(Path("/opt/other/bin/java"), "17.0.15", "Debian 17.0.15+6"),
    ],
)
def test_another_build_of_java_uses_another_archive(tmp_path: Path, jar: Path, other: Java) -> None:
    assert class_archive.locate_archive(tmp_path, JAVA, [jar]) != class_archive.locate_archive(tmp_path, other, [jar])


def test_a_changed_or_moved_jar_uses_another_archive(tmp_path: Path, jar: Path) -> None:
    before = class_archive.locate_archive(tmp_path, JAVA, [jar])
    second = tmp_path / "second.jar"
    second.write_bytes(b"more")

    assert class_archive.locate_archive(tmp_path, JAVA, [jar, second]) != before
    assert class_archive.locate_archive(tmp_path, JAVA, [second, jar]) != class_archive.locate_archive(
        tmp_path, JAVA, [jar, second]
    )
    os.utime(jar, (1, 1))
    assert class_archive.locate_archive(tmp_path, JAVA, [jar]) != before


def test_a_missing_archive_gives_no_options(tmp_path: Path) -> None:
    assert class_archive.archive_options(tmp_path / "none.jsa") == ()


def test_an_archive_without_a_matching_stamp_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "found.jsa").write_bytes(b"classes")

    assert class_archive.archive_options(tmp_path / "found.jsa") == ()
