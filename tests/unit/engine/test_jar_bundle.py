"""A bundle carries the engine's jars to a machine without a network; a bad one installs nothing."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from hypaware.engine import jar_bundle, jars
from hypaware.errors import HypError, NotReady
from tests.unit.engine.test_jars import CONTENT, JARS, fake_repository, ignore_progress, no_network, pinned


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    jars.install_jars(tmp_path / "online", ignore_progress, fetch=fake_repository(CONTENT), jars=JARS)
    file = tmp_path / "engine.zip"
    assert jar_bundle.write_bundle(file, tmp_path / "online", JARS) == file.stat().st_size
    return file


def install(bundle: Path, cache: Path, wanted: tuple[jars.Jar, ...] = JARS) -> jars.InstalledJars:
    return jars.install_jars(cache, ignore_progress, fetch=jar_bundle.fetch_from(bundle), jars=wanted)


def refused(bundle: Path, cache: Path, wanted: tuple[jars.Jar, ...] = JARS) -> HypError:
    """Both the check and an installation refuse the bundle, and nothing is left behind."""
    with pytest.raises(HypError) as checked:
        jar_bundle.check_bundle(bundle, wanted)
    with pytest.raises(HypError) as found:
        install(bundle, cache, wanted)
    assert found.value.message == checked.value.message
    assert str(bundle) in found.value.message
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]
    with pytest.raises(NotReady):
        jars.find_installed_jars(cache, wanted)
    return found.value


def test_a_bundle_installs_the_jars_without_a_network(bundle: Path, tmp_path: Path) -> None:
    jar_bundle.check_bundle(bundle, JARS)
    done = install(bundle, tmp_path / "offline")
    assert done.fetched
    assert [path.read_bytes() for path in done.paths] == [CONTENT["lake"], CONTENT["db"]]
    assert jars.install_jars(tmp_path / "offline", ignore_progress, fetch=no_network, jars=JARS).paths == done.paths


def test_the_same_jars_give_the_same_bundle(bundle: Path, tmp_path: Path) -> None:
    jar_bundle.write_bundle(tmp_path / "again.zip", tmp_path / "online", JARS)
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_a_bundle_is_made_only_of_installed_jars(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="not installed"):
        jar_bundle.write_bundle(tmp_path / "engine.zip", tmp_path / "empty", JARS)
    assert not (tmp_path / "engine.zip").exists()


def test_a_truncated_bundle_installs_nothing(bundle: Path, tmp_path: Path) -> None:
    whole = bundle.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        bundle.write_bytes(whole[:length])
        assert refused(bundle, tmp_path / "offline").kind == "bundle_damaged"


def test_a_changed_byte_installs_nothing(bundle: Path, tmp_path: Path) -> None:
    body = bytearray(bundle.read_bytes())
    body[body.index(CONTENT["db"])] ^= 1
    bundle.write_bytes(body)
    assert refused(bundle, tmp_path / "offline").kind == "bundle_damaged"


def test_a_jar_that_was_exchanged_together_with_its_checksums_is_refused(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as packed:
        entries = {name: packed.read(name) for name in packed.namelist()}
    entries["jars/db-1.0.jar"] = b"another driver"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    assert "does not have the pinned hash" in refused(bundle, tmp_path / "offline").message


@pytest.mark.parametrize(
    "content",
    [b"", b"not a zip file" * 100, "a zip file", "bundle.json that says nothing"],
    ids=["empty", "text", "zip", "nothing"],
)
def test_a_file_that_is_no_bundle_is_refused(content: bytes | str, tmp_path: Path) -> None:
    if isinstance(content, str):
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as packed:
            packed.writestr("bundle.json" if "bundle" in content else "photo.jpg", "[]")
        content = body.getvalue()
    (tmp_path / "file.zip").write_bytes(content)
    assert refused(tmp_path / "file.zip", tmp_path / "offline").kind in ("bundle_damaged", "bundle_foreign")


def test_a_bundle_of_another_version_names_both_versions(bundle: Path, tmp_path: Path) -> None:
    newer = (JARS[0], pinned("db", b"the next driver", "2.0"))
    found = refused(bundle, tmp_path / "offline", newer)
    assert found.kind == "bundle_foreign"
    assert "db-2.0.jar" in found.message
    with zipfile.ZipFile(bundle) as packed:
        assert json.loads(packed.read("bundle.json"))["hypaware"] in found.message
