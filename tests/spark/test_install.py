"""Installation with Ivy from a repository in a folder, and concurrent builds of a class archive."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from hypaware.engine import class_archive, jars, jvm
from hypaware.engine.jars import Jar
from hypaware.engine.session import EngineSession
from hypaware.errors import NotReady
from hypaware.home import cache_dir
from tests.support.processes import eventually

pytestmark = pytest.mark.spark

BODY = b"not really a jar, and Ivy does not look"
TOOL = Jar("org.example", "tool", "1.0", len(BODY), hashlib.sha256(BODY).hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository in a folder, and Ivy settings of the user that name it."""
    repository = tmp_path / "repository"
    (repository / "org" / "example").mkdir(parents=True)
    users = tmp_path / "user" / ".ivy2"
    users.mkdir(parents=True)
    (users / "ivysettings.xml").write_text(f"""
        <ivysettings><settings defaultResolver="mine"/><caches defaultCacheDir="{tmp_path}/ivy-cache"/><resolvers>
        <filesystem name="mine" m2compatible="true">
        <ivy pattern="{repository}/[organisation]/[module]/[revision]/[module]-[revision].pom"/>
        <artifact pattern="{repository}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
        </filesystem></resolvers></ivysettings>""")
    monkeypatch.setenv("HOME", str(users.parent))
    return repository


def publish(repository: Path, body: bytes) -> None:
    folder = repository / "org" / "example" / TOOL.name / TOOL.version
    folder.mkdir(parents=True)
    (folder / "tool-1.0.jar").write_bytes(body)
    (folder / "tool-1.0-sources.jar").write_bytes(b"never fetched")
    (folder / "tool-1.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>tool</artifactId>"
        "<version>1.0</version><dependencies><dependency><groupId>org.example</groupId>"
        "<artifactId>never-fetched</artifactId><version>1</version></dependency></dependencies></project>"
    )


def unheard(message: str, done: float, total: float) -> None:
    pass


def test_ivy_uses_the_settings_of_the_user(repository: Path, tmp_path: Path) -> None:
    publish(repository, BODY)

    installed = jars.install_jars(tmp_path / "cache", unheard, jars=[TOOL])

    assert [(path.name, path.read_bytes()) for path in installed.paths] == [("tool-1.0.jar", BODY)]
    assert sorted(path.name for path in installed.paths[0].parent.iterdir()) == ["tool-1.0.jar", "verified.json"]


def test_a_failed_download_is_retried(repository: Path, tmp_path: Path) -> None:
    """This happens with a busy mirror or a lost connection."""

    def appears(message: str, done: float, total: float) -> None:
        if message.startswith("retrying"):
            publish(repository, BODY)

    (path,) = jars.install_jars(tmp_path / "cache", appears, jars=[TOOL]).paths
    assert path.read_bytes() == BODY


def test_a_download_with_another_hash_is_not_installed(repository: Path, tmp_path: Path) -> None:
    publish(repository, BODY[::-1])

    with pytest.raises(NotReady) as refused:
        jars.install_jars(tmp_path / "cache", unheard, jars=[TOOL])

    assert refused.value.kind == "jars_hash_mismatch"
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_a_failed_download_reports_the_reason_and_the_fix(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"org\.example#tool;1\.0") as refused:
        jars.install_jars(tmp_path / "cache", unheard, jars=[TOOL])

    assert (refused.value.kind, refused.value.exit_code) == ("jars_unavailable", 3)
    assert refused.value.repair == ("hyp engine install",)


def test_concurrent_background_builds_make_one_archive_and_replace_the_stale_one(
    engine_session: EngineSession, tmp_path: Path
) -> None:
    cache = cache_with_jars(tmp_path / "cache")
    expected = class_archive.locate_archive(
        cache, jvm.find_java(), jvm.build_class_path(jars.find_installed_jars(cache))
    )
    expected.parent.mkdir()
    stale = expected.with_name(f"{expected.name.split('-')[0]}-{'0' * 16}.jsa")
    stale.write_bytes(b"classes of yesterday")

    class_archive.build_in_background(cache)
    class_archive.build_in_background(cache)
    eventually(expected.is_file)

    assert expected.stat().st_size > 50_000_000
    assert not stale.exists()
    assert class_archive.ensure_archive(cache, no_work) == expected
    assert class_archive.archive_options(expected)
    expected.chmod(0o600)
    os.truncate(expected, 5_000_000)
    assert class_archive.archive_options(expected) == (), "Java 17 crashes with a truncated archive"


def test_a_failed_archive_build_is_not_retried_by_every_engine(engine_session: EngineSession, tmp_path: Path) -> None:
    cache = cache_with_jars(tmp_path / "cache")
    expected = class_archive.locate_archive(
        cache, jvm.find_java(), jvm.build_class_path(jars.find_installed_jars(cache))
    )
    expected.parent.mkdir()
    expected.with_suffix(".failed").touch()

    class_archive.build_in_background(cache)

    assert [path.name for path in expected.parent.iterdir()] == [f"{expected.stem}.failed"]


def cache_with_jars(cache: Path) -> Path:
    for jar in jars.find_installed_jars(cache_dir()):
        there = cache / "jars" / jar.parent.name
        there.mkdir(parents=True, exist_ok=True)
        try:
            os.link(jar, there / jar.name)
        except OSError:
            # The cache is on another disk.
            shutil.copy2(jar, there / jar.name)
    return cache


def no_work(message: str, done: float, total: float) -> None:
    raise AssertionError(message)
