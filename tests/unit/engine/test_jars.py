"""The engine's jars: verified, installed completely or not at all, and used without a network."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hypaware.engine import jars
from hypaware.engine.jars import Fetch, Jar, Progress
from hypaware.errors import NotReady

CONTENT = {"lake": b"the table format" * 1000, "db": b"the driver" * 500}


def pinned(name: str, content: bytes | None = None, version: str = "1.0") -> Jar:
    body = CONTENT[name] if content is None else content
    return Jar("org.example", name, version, len(body), hashlib.sha256(body).hexdigest())


JARS = (pinned("lake"), pinned("db"))


def ignore_progress(message: str, done: float, total: float) -> None:
    pass


def fake_repository(content: dict[str, bytes], then: Callable[[], None] = lambda: None) -> Fetch:
    """Return a fake repository with these bytes."""

    def fetch(wanted: Sequence[Jar], into: Path, progress: Progress) -> None:
        for jar in wanted:
            if jar.name in content:
                (into / jar.file_name).write_bytes(content[jar.name])
        then()

    return fetch


def no_network(wanted: Sequence[Jar], into: Path, progress: Progress) -> None:
    raise NotReady("no network", kind="jars_unavailable", repair="hyp engine install")


def leftover_files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "jars").iterdir() if path.name != ".lock")


def test_the_lock_file_pins_every_jar_by_version_size_and_hash() -> None:
    locked = jars.locked_jars()

    assert {jar.name for jar in locked} == {"iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc", "postgresql"}
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) and jar.size > 1_000_000 for jar in locked)


def test_installed_jars_are_found_without_a_network(tmp_path: Path) -> None:
    first = jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS)
    again = jars.install_jars(tmp_path, ignore_progress, fetch=no_network, jars=JARS)

    assert (first.fetched, again.fetched) == (True, False)
    assert [path.read_bytes() for path in first.paths] == [CONTENT["lake"], CONTENT["db"]]
    assert first.paths == again.paths == jars.find_installed_jars(tmp_path, JARS)


def test_progress_ends_with_all_bytes_done(tmp_path: Path) -> None:
    said: list[tuple[float, float]] = []

    jars.install_jars(tmp_path, lambda _, *bytes_: said.append(bytes_), fetch=fake_repository(CONTENT), jars=JARS)

    total = sum(jar.size for jar in JARS)
    assert said[-1] == (total, total)


def test_a_jar_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    forged = {**CONTENT, "db": CONTENT["db"][:-1] + b"!"}

    with pytest.raises(NotReady, match=r"db-1\.0\.jar") as refused:
        jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(forged), jars=JARS)

    assert (refused.value.kind, refused.value.exit_code) == ("jars_hash_mismatch", 3)
    assert refused.value.repair == ("hyp engine install",)
    assert leftover_files(tmp_path) == []


def test_a_jar_that_was_not_downloaded_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"db-1\.0\.jar") as refused:
        jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository({"lake": CONTENT["lake"]}), jars=JARS)

    assert refused.value.kind == "jars_unavailable"
    assert leftover_files(tmp_path) == []


def test_no_network_leaves_nothing_half_installed(tmp_path: Path) -> None:
    with pytest.raises(NotReady) as refused:
        jars.install_jars(tmp_path, ignore_progress, fetch=no_network, jars=JARS)

    assert (refused.value.kind, leftover_files(tmp_path)) == ("jars_unavailable", [])


def test_missing_jars_are_exit_code_3_with_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(NotReady) as refused:
        jars.find_installed_jars(tmp_path, JARS)

    assert (refused.value.kind, refused.value.exit_code) == ("engine_not_installed", 3)
    assert refused.value.repair == ("hyp engine install",)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: os.truncate(path, 10), lambda path: path.write_bytes(b"x" * path.stat().st_size)],
    ids=["removed", "cut", "overwritten"],
)
def test_a_damaged_installation_is_detected_and_replaced(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    lake, _ = jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS).paths
    damage(lake)

    with pytest.raises(NotReady, match=r"lake-1\.0\.jar") as refused:
        jars.find_installed_jars(tmp_path, JARS)
    assert refused.value.kind == "engine_not_installed"

    assert jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS).fetched
    assert jars.find_installed_jars(tmp_path, JARS)[0].read_bytes() == CONTENT["lake"]
    assert leftover_files(tmp_path) == [jars.jar_folder(tmp_path, JARS).name]


def test_a_copied_cache_is_valid(tmp_path: Path) -> None:
    for path in jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS).paths:
        os.utime(path, (1, 1))

    assert len(jars.find_installed_jars(tmp_path, JARS)) == 2
    assert not jars.install_jars(tmp_path, ignore_progress, fetch=no_network, jars=JARS).fetched


def test_verification_reads_every_byte(tmp_path: Path) -> None:
    lake, _ = jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS).paths
    jars.verify_jars(lake.parent, JARS)
    seen = lake.stat()
    lake.write_bytes(b"x" * seen.st_size)
    os.utime(lake, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    with pytest.raises(NotReady) as refused:
        jars.verify_jars(lake.parent, JARS)
    assert refused.value.kind == "jars_hash_mismatch"


def test_concurrent_installations_download_once(tmp_path: Path) -> None:
    fetches: list[int] = []
    both_fetch = threading.Barrier(2)

    def meet() -> None:
        fetches.append(1)
        with suppress(threading.BrokenBarrierError):
            both_fetch.wait(0.5)

    with ThreadPoolExecutor(2) as pool:
        installs = [
            pool.submit(
                jars.install_jars, tmp_path, ignore_progress, fetch=fake_repository(CONTENT, then=meet), jars=JARS
            )
            for _ in range(2)
        ]

    assert sorted(done.result().fetched for done in installs) == [False, True]
    assert len(fetches) == 1


def test_leftovers_of_a_killed_installation_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "jars" / ".staging-abc"
    left.mkdir(parents=True)
    (left / "lake-1.0.jar").write_bytes(b"half")

    jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS)

    assert leftover_files(tmp_path) == [jars.jar_folder(tmp_path, JARS).name]


def test_different_versions_can_be_installed_together(tmp_path: Path) -> None:
    newer = (pinned("lake", b"newer", version="1.1"), pinned("db"))
    old = jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository(CONTENT), jars=JARS)
    new = jars.install_jars(tmp_path, ignore_progress, fetch=fake_repository({**CONTENT, "lake": b"newer"}), jars=newer)

    assert old.paths[0].read_bytes() == CONTENT["lake"]
    assert new.paths[0].read_bytes() == b"newer"
    assert new.paths[0].name == "lake-1.1.jar"
