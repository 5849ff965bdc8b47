"""A folder as destination, on a disk that loses power, fills up, denies access or disappears."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.export.sink import DestinationDenied, DestinationUnreachable, StreamCoverage
from hypaware.export.sinks.blob import blob_sink
from hypaware.testing.fault_injection import run_in_child
from tests.support.blob_destination import GATEWAY, INCARNATION, chunk, files, manifests, opened, payload, untrue
from tests.support.rows import DATASET
from tests.support.shadow_disk import ShadowDisk
from tests.support.small_disk import mounted
from tests.support.unprivileged import unprivileged

POINTS = [
    "export.blob.before-object",
    "export.blob-file.before-rename",
    "export.blob.after-object",
    "export.blob-file.before-link",
    "export.blob-file.after-link",
    "export.blob.after-manifest",
]
OBJECT = blob_sink.object_key(chunk(0, 10), "parquet")
MANIFEST = blob_sink.manifest_key(chunk(0, 10))
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
def test_after_a_kill_at_any_point_the_next_attempt_delivers_once(root: Path, point: str) -> None:
    root.parent.mkdir()

    assert not run_in_child(lambda: deliver(root), crash_at=point)
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
def test_a_power_cut_leaves_no_manifest_or_one_with_a_complete_object(
    tmp_path_factory: pytest.TempPathFactory, point: str | None
) -> None:
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def any_cut(data: st.DataObject) -> None:
        place = tmp_path_factory.mktemp("power")
        disk, root = ShadowDisk(place / "shadow"), place / "disk" / "archive"
        root.parent.mkdir()
        with disk.watching():
            results = run_in_child(lambda: deliver(root), crash_at=point)
        disk.power_cut(root.parent, lambda: data.draw(st.booleans()))

        held = files(root) if root.exists() else {}
        assert untrue(held) == []
        if results:
            assert [parsed["rows"] for parsed in manifests(held)] == [7]
        deliver(root)
        assert untrue(files(root)) == []
        assert [parsed["rows"] for parsed in manifests(files(root))] == [7]

    any_cut()


@pytest.mark.hazard(10)
@pytest.mark.parametrize("operation", ["has_chunk", "coverage", "ship"])
def test_files_that_a_killed_writer_did_not_fsync_are_fsynced_before_use(
    tmp_path: Path, root: Path, operation: str
) -> None:
    """Killed between the link and the fsync of its folder; the next process finds the chunk; then power fails."""
    root.parent.mkdir()
    disk = ShadowDisk(tmp_path / "shadow")

    async def ask_again() -> object:
        sink = await opened(root)
        if operation == "ship":
            return await sink.ship(chunk(0, 10), payload(7), 0)
        return await (
            sink.has_chunk(chunk(0, 10)) if operation == "has_chunk" else sink.coverage(STREAM, GATEWAY, INCARNATION)
        )

    with disk.watching():
        assert not run_in_child(lambda: deliver(root), crash_at="export.blob-file.after-link")
        results = asyncio.run(ask_again())
    disk.power_cut(root.parent, lambda: False)

    assert results in (True, StreamCoverage(10), len(files(root)[OBJECT]))
    assert len(manifests(files(root))) == 1
    assert untrue(files(root)) == []


@pytest.mark.hazard(10)
def test_every_chunk_is_durable_when_ship_returns(tmp_path: Path, root: Path) -> None:
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
def test_folders_that_a_killed_writer_did_not_fsync_are_fsynced(tmp_path: Path, root: Path) -> None:
    disk = ShadowDisk(tmp_path / "shadow")
    (root / MANIFEST).parent.mkdir(parents=True)

    with disk.watching():
        deliver(root)
    disk.power_cut(root.parent, lambda: False)

    assert sorted(files(root)) == sorted([OBJECT, MANIFEST])
    assert untrue(files(root)) == []


def test_temporary_files_are_removed_only_if_their_writer_is_dead(root: Path) -> None:
    root.parent.mkdir()
    assert not run_in_child(lambda: deliver(root), crash_at="export.blob-file.before-rename")
    (left,) = files(root)
    assert left.endswith(".tmp")
    looked: list[set[str]] = []

    async def work() -> None:
        one, other = await opened(root), await opened(root)
        real = os.link

        def link(*args: object, **named: object) -> None:
            # The second writer begins while the first has its manifest under a temporary name.
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


def test_a_disk_without_hard_links_is_supported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """USB sticks: the manifest is renamed to a name that was free shortly before."""
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
def test_a_full_disk_is_reported_and_delivery_continues_once_there_is_space(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "2m") as disk:
        root = disk.root / "archive"
        root.mkdir()
        disk.fill(leave=100_000)
        with pytest.raises(DestinationDenied, match="Free some space") as denied:
            deliver_noise(root)
        assert denied.value.kind == "disk_full"
        assert files(root) == {}
        disk.make_room()
        deliver_noise(root)

        assert untrue(files(root)) == []
        assert len(manifests(files(root))) == 1


def deliver_noise(root: Path) -> None:
    """Return half a megabyte that cannot be compressed."""

    async def work() -> None:
        noise = payload(1, content_text=os.urandom(500_000).hex())
        await (await opened(root)).ship(chunk(0, 10), noise, 0)

    asyncio.run(work())


def test_a_missing_folder_is_created_for_its_owner_only(root: Path) -> None:
    root.parent.mkdir()

    deliver(root)

    assert root.stat().st_mode & 0o777 == 0o700


def test_the_parent_folder_must_exist(root: Path) -> None:
    """The disk may not be mounted: rows would be written to the mount point."""
    with pytest.raises(DestinationDenied, match="does not exist") as denied:
        deliver(root)

    assert denied.value.kind == "no_such_folder"
    assert denied.value.repair == f"mkdir -p {root}"
    assert not root.parent.exists()


def test_a_file_is_not_a_valid_destination(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("something")

    with pytest.raises(DestinationDenied, match="is not a folder"):
        deliver(root)


def test_an_unwritable_folder_is_denied_when_it_is_opened(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o500)

    with unprivileged(), pytest.raises(DestinationDenied, match="Permission denied") as denied:
        deliver(root)

    assert denied.value.kind == "no_permission"
    assert files(root) == {}


def test_an_unwritable_subfolder_is_denied(root: Path) -> None:
    (root / DATASET).mkdir(parents=True)
    (root / DATASET).chmod(0o500)

    with unprivileged(), pytest.raises(DestinationDenied, match="Permission denied") as denied:
        deliver(root)

    assert denied.value.kind == "no_permission"


def test_a_folder_that_disappeared_is_reported_and_not_created_again(root: Path) -> None:
    """A removed disk: later rows must not be written to its mount point."""
    root.parent.mkdir()

    async def work() -> None:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        root.rename(root.with_name("gone"))
        with pytest.raises(DestinationUnreachable, match="is missing"):
            await sink.ship(chunk(10, 20), payload(7), 10)
        for call in (sink.has_chunk(chunk(0, 10)), sink.coverage(STREAM, GATEWAY, INCARNATION)):
            with pytest.raises(DestinationUnreachable, match="is missing"):
                await call
        assert not root.exists()
        root.mkdir()
        await sink.ship(chunk(10, 20), payload(7), 10)

    asyncio.run(work())

    assert [parsed["after"] for parsed in manifests(files(root))] == [10]
    assert untrue(files(root)) == []


@pytest.mark.parametrize("thing", ["pipe", "folder"])
def test_another_kind_of_file_with_the_name_of_a_manifest_does_not_block_forever(root: Path, thing: str) -> None:
    (root / MANIFEST).parent.mkdir(parents=True)
    if thing == "pipe":
        os.mkfifo(root / MANIFEST)
    else:
        (root / MANIFEST).mkdir()

    with pytest.raises(DestinationDenied, match="not a regular file"):
        deliver(root)
