"""A folder as destination, on a disk that loses power, fills up, refuses or goes away."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.export.sink import Delivered, Denied, Unreachable
from hypaware.export.sinks.blob import keys
from tests.blob_destination import GATEWAY, INCARNATION, chunk, files, manifests, opened, payload, untrue
from tests.lives import live
from tests.powerless import powerless
from tests.rows import DATASET
from tests.shadow_disk import ShadowDisk
from tests.small_disk import mounted

POINTS = [
    "export.blob.before-object",
    "export.blob-file.before-rename",
    "export.blob.after-object",
    "export.blob-file.before-link",
    "export.blob-file.after-link",
    "export.blob.after-manifest",
]
OBJECT = keys.object_key(chunk(0, 10), "parquet")
MANIFEST = keys.manifest_key(chunk(0, 10))
STREAM = chunk(0, 1).stream


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "archive"


def deliver(root: Path, rows: int = 7) -> None:
    async def work() -> None:
        await (await opened(root)).ship(chunk(0, 10), payload(rows), 0)

    asyncio.run(work())


def landed(root: Path) -> bool:
    async def work() -> bool:
        return await (await opened(root)).has_chunk(chunk(0, 10))

    return asyncio.run(work())


@pytest.mark.hazard(35)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_next_try_delivers_once(root: Path, point: str) -> None:
    root.parent.mkdir()

    assert not live(lambda: deliver(root), crash_at=point)
    assert untrue(files(root)) == []
    deliver(root, rows=5)

    held = files(root)
    assert sorted(held) == sorted([OBJECT, MANIFEST])
    assert untrue(held) == []
    expected = 7 if point in POINTS[-2:] else 5
    assert manifests(held)[0]["rows"] == expected


@pytest.mark.hazard(10)
@pytest.mark.hazard(35)
@pytest.mark.parametrize("point", [*POINTS, None])
def test_a_power_cut_leaves_no_manifest_or_one_whose_object_is_whole(
    tmp_path_factory: pytest.TempPathFactory, point: str | None
) -> None:
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def any_cut(data: st.DataObject) -> None:
        place = tmp_path_factory.mktemp("power")
        disk, root = ShadowDisk(place / "shadow"), place / "disk" / "archive"
        root.parent.mkdir()
        with disk.watching():
            told = live(lambda: deliver(root), crash_at=point)
        disk.power_cut(root.parent, lambda: data.draw(st.booleans()))

        held = files(root) if root.exists() else {}
        assert untrue(held) == []
        if told:
            assert [said["rows"] for said in manifests(held)] == [7]
        deliver(root)
        assert untrue(files(root)) == []
        assert [said["rows"] for said in manifests(files(root))] == [7]

    any_cut()


@pytest.mark.hazard(10)
@pytest.mark.parametrize("ask", ["has_chunk", "coverage", "ship"])
def test_what_a_killed_writer_did_not_sync_is_synced_before_it_is_relied_on(
    tmp_path: Path, root: Path, ask: str
) -> None:
    """Killed between the manifest's name and its folder's sync. The next life is told that it landed; then the cut."""
    root.parent.mkdir()
    disk = ShadowDisk(tmp_path / "shadow")

    async def ask_again() -> object:
        sink = await opened(root)
        if ask == "ship":
            return await sink.ship(chunk(0, 10), payload(7), 0)
        return await (sink.has_chunk(chunk(0, 10)) if ask == "has_chunk" else sink.coverage(STREAM, GATEWAY, INCARNATION))

    with disk.watching():
        assert not live(lambda: deliver(root), crash_at="export.blob-file.after-link")
        told = asyncio.run(ask_again())
    disk.power_cut(root.parent, lambda: False)

    assert told in (True, Delivered(10), len(files(root)[OBJECT]))
    assert len(manifests(files(root))) == 1
    assert untrue(files(root)) == []


@pytest.mark.hazard(10)
def test_every_chunk_is_durable_when_it_was_told_not_only_the_first(tmp_path: Path, root: Path) -> None:
    root.parent.mkdir()
    disk = ShadowDisk(tmp_path / "shadow")

    async def work() -> None:
        sink = await opened(root)
        for after in range(0, 30, 10):
            await sink.ship(chunk(after, after + 10), payload(7, after), after)

    with disk.watching():
        asyncio.run(work())
    disk.power_cut(root.parent, lambda: False)

    assert len(files(root)) == 6
    assert untrue(files(root)) == []


@pytest.mark.hazard(10)
def test_folders_that_a_dead_writer_made_and_did_not_sync_are_synced(tmp_path: Path, root: Path) -> None:
    disk = ShadowDisk(tmp_path / "shadow")
    (root / MANIFEST).parent.mkdir(parents=True)

    with disk.watching():
        deliver(root)
    disk.power_cut(root.parent, lambda: False)

    assert sorted(files(root)) == sorted([OBJECT, MANIFEST])
    assert untrue(files(root)) == []


def test_temporary_files_of_the_dead_are_removed_and_those_of_the_living_are_not(root: Path) -> None:
    root.parent.mkdir()
    assert not live(lambda: deliver(root), crash_at="export.blob-file.before-rename")
    (left,) = files(root)
    assert left.endswith(".tmp")
    looked: list[set[str]] = []

    async def work() -> None:
        one, other = await opened(root), await opened(root)
        real = os.link

        def link(*args: object, **named: object) -> None:
            # The other one begins while the first has its manifest under a temporary name.
            os.link = real
            asyncio.run(other.ship(chunk(10, 20), payload(3), 10))
            looked.append({path for path in files(root) if path.endswith(".tmp")})
            real(*args, **named)  # type: ignore[arg-type]

        os.link = link
        try:
            await one.ship(chunk(0, 10), payload(7), 0)
        finally:
            os.link = real

    asyncio.run(work())

    assert [len(each) for each in looked] == [1]
    assert left not in looked[0]
    assert len(files(root)) == 4
    assert untrue(files(root)) == []


def test_a_disk_without_links_is_good_enough(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory sticks: there the manifest is renamed into a place that was free a moment ago."""
    root.parent.mkdir()

    def refuse(*args: object, **named: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    deliver(root)
    deliver(root, rows=3)

    assert sorted(files(root)) == sorted([OBJECT, MANIFEST])
    assert manifests(files(root))[0]["rows"] == 7
    assert untrue(files(root)) == []


@pytest.mark.hazard(13)
def test_a_full_disk_is_told_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "2m") as disk:
        root = disk.root / "archive"
        root.mkdir()
        disk.fill(leave=100_000)
        with pytest.raises(Denied, match="Free some space") as denied:
            deliver_noise(root)
        assert denied.value.kind == "disk_full"
        assert files(root) == {}
        disk.make_room()
        deliver_noise(root)

        assert untrue(files(root)) == []
        assert len(manifests(files(root))) == 1


def deliver_noise(root: Path) -> None:
    """Half a megabyte that cannot be compressed."""

    async def work() -> None:
        noise = payload(1, content_text=os.urandom(500_000).hex())
        await (await opened(root)).ship(chunk(0, 10), noise, 0)

    asyncio.run(work())


def test_the_folder_is_made_and_belongs_to_its_user_alone(root: Path) -> None:
    root.parent.mkdir()

    deliver(root)

    assert root.stat().st_mode & 0o777 == 0o700


def test_the_folder_above_it_must_be_there(root: Path) -> None:
    """It may be a disk that is not mounted: rows would end up beneath it."""
    with pytest.raises(Denied, match="does not exist") as denied:
        deliver(root)

    assert denied.value.kind == "no_such_folder"
    assert denied.value.repair == f"mkdir -p {root}"
    assert not root.parent.exists()


def test_a_file_is_no_destination(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("something")

    with pytest.raises(Denied, match="is not a folder"):
        deliver(root)


def test_a_folder_that_may_not_be_written_is_told_when_it_is_opened(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o500)

    with powerless(), pytest.raises(Denied, match="Permission denied") as denied:
        deliver(root)

    assert denied.value.kind == "no_permission"
    assert files(root) == {}


def test_a_folder_within_that_may_not_be_written_is_told(root: Path) -> None:
    (root / DATASET).mkdir(parents=True)
    (root / DATASET).chmod(0o500)

    with powerless(), pytest.raises(Denied, match="Permission denied") as denied:
        deliver(root)

    assert denied.value.kind == "no_permission"


def test_a_folder_that_went_away_is_told_and_not_made_again(root: Path) -> None:
    """A disk that was taken out: what comes next must not end up beneath it. Its user may put another in."""
    root.parent.mkdir()

    async def work() -> None:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        root.rename(root.with_name("gone"))
        with pytest.raises(Unreachable, match="is missing"):
            await sink.ship(chunk(10, 20), payload(7), 10)
        for asked in (sink.has_chunk(chunk(0, 10)), sink.coverage(STREAM, GATEWAY, INCARNATION)):
            with pytest.raises(Unreachable, match="is missing"):
                await asked
        assert not root.exists()
        root.mkdir()
        await sink.ship(chunk(10, 20), payload(7), 10)

    asyncio.run(work())

    assert [said["after"] for said in manifests(files(root))] == [10]
    assert untrue(files(root)) == []


@pytest.mark.parametrize("thing", ["pipe", "folder"])
def test_something_else_in_the_place_of_a_manifest_stops_nobody_for_ever(root: Path, thing: str) -> None:
    (root / MANIFEST).parent.mkdir(parents=True)
    if thing == "pipe":
        os.mkfifo(root / MANIFEST)
    else:
        (root / MANIFEST).mkdir()

    with pytest.raises(Denied, match="not a regular file"):
        deliver(root)
