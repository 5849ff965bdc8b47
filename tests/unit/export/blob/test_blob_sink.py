"""The blob sink stores each chunk once with a matching manifest, even with concurrent writers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from hypaware.errors import ConfigError
from hypaware.export.encoders import JSONL
from hypaware.export.sink import (
    Destination,
    DestinationDenied,
    DestinationUnreachable,
    RangeOverlap,
    SinkSettings,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.sinks.blob import BLOB, blob_sink
from hypaware.export.sinks.blob.blob_sink import BlobSink
from hypaware.home import Home
from tests.support.blob_destination import (
    GATEWAY,
    INCARNATION,
    Between,
    chunk,
    files,
    manifests,
    opened,
    payload,
    table,
    until_landed,
    untrue,
)
from tests.support.rows import DATASET

STREAM = chunk(0, 1).stream
OBJECT = blob_sink.object_key(chunk(0, 10), "parquet")
MANIFEST = blob_sink.manifest_key(chunk(0, 10))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_a_chunk_is_an_object_and_a_manifest_and_nothing_else(root: Path) -> None:
    async def work() -> tuple[Destination, int]:
        sink = await opened(root)
        return await sink.open(), await sink.ship(chunk(0, 10), payload(7), 0)

    destination, sent = asyncio.run(work())

    held = files(root)
    assert destination == Destination(f"file://{root}")
    assert sorted(held) == sorted([OBJECT, MANIFEST])
    assert sent == len(held[OBJECT])
    (parsed,) = manifests(held)
    assert (parsed["after"], parsed["last"], parsed["rows"]) == (0, 10, 7)
    assert (parsed["gateway"], parsed["incarnation"], parsed["source"]) == (GATEWAY, INCARNATION, "claude")
    assert untrue(held) == []


def test_other_readers_find_the_rows_through_the_manifests(root: Path) -> None:
    async def work() -> None:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(10, 20), payload(5, 7), 10)

    asyncio.run(work())

    named = [str(root / each["key"]) for parsed in manifests(files(root)) for each in parsed["objects"]]
    by_arrow = [index for path in named for index in pq.read_table(path).column("message_index").to_pylist()]
    by_duckdb = duckdb.execute("SELECT message_index FROM read_parquet(?) ORDER BY 1", [named]).fetchall()
    assert by_arrow == [index for (index,) in by_duckdb] == list(range(12))


def test_a_stored_chunk_is_not_written_again(root: Path) -> None:
    async def work() -> tuple[int, int]:
        first = await (await opened(root)).ship(chunk(0, 10), payload(7), 0)
        return first, await (await opened(root)).ship(chunk(0, 10), payload(7), 0)

    async def with_stamps() -> None:
        first, again = await work()
        assert first == again

    asyncio.run(with_stamps())
    before = {path: path.stat().st_ino for path in root.rglob("*")}
    asyncio.run(with_stamps())

    assert {path: path.stat().st_ino for path in root.rglob("*")} == before


def test_objects_use_the_configured_encoder(root: Path) -> None:
    async def work() -> None:
        await (await opened(root, JSONL)).ship(chunk(0, 10), payload(7, tool_args={"a": 1}), 0)

    asyncio.run(work())

    path = root / blob_sink.object_key(chunk(0, 10), "jsonl.gz")
    assert duckdb.execute("SELECT sum(tool_args.a) FROM read_json(?)", [str(path)]).fetchone() == (7,)


def test_a_chunk_has_arrived_if_its_manifest_and_object_exist(root: Path) -> None:
    async def work() -> list[bool]:
        sink = await opened(root)
        results = [await sink.has_chunk(chunk(0, 10))]
        await sink.ship(chunk(0, 10), payload(7), 0)
        results += [
            await sink.has_chunk(chunk(0, 10)),
            await sink.has_chunk(chunk(0, 9)),
            await sink.has_chunk(chunk(1, 10)),
        ]
        (root / OBJECT).write_bytes((root / OBJECT).read_bytes()[:-1])
        results += [await sink.has_chunk(chunk(0, 10))]
        (root / OBJECT).unlink()
        return [*results, await sink.has_chunk(chunk(0, 10))]

    assert asyncio.run(work()) == [False, True, False, False, False, False]


def test_an_object_without_a_manifest_does_not_count(root: Path) -> None:
    async def work() -> tuple[bool, StreamCoverage]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        (root / MANIFEST).unlink()
        return await sink.has_chunk(chunk(0, 10)), await sink.coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == (False, StreamCoverage(0))


@pytest.mark.hazard(35)
@pytest.mark.hazard(90)
@pytest.mark.parametrize("left", [b"", b"half an obj", b"x" * 1_000_000])
def test_a_retry_after_a_purge_replaces_the_object_of_the_first_attempt(root: Path, left: bytes) -> None:
    """The rows have changed since: the hash must match the stored object, and the old object must not block it."""

    async def work() -> None:
        sink = await opened(root)
        (root / OBJECT).parent.mkdir(parents=True)
        (root / OBJECT).write_bytes(left)
        await sink.ship(chunk(0, 10), payload(4, 3), 0)

    asyncio.run(work())

    held = files(root)
    assert untrue(held) == []
    assert manifests(held)[0]["rows"] == 4
    assert pq.read_table(root / OBJECT).column("message_index").to_pylist() == [3, 4, 5, 6]


@pytest.mark.hazard(89)
def test_two_machines_with_one_prefix_keep_separate_rows(root: Path) -> None:
    async def work() -> list[StreamCoverage]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(0, 25, gateway_id="gw-other"), payload(3), 0)
        results = [await sink.coverage(STREAM, each, INCARNATION) for each in (GATEWAY, "gw-other", "gw-third")]
        assert not await sink.has_chunk(chunk(0, 25))
        return results

    assert asyncio.run(work()) == [StreamCoverage(10), StreamCoverage(25), StreamCoverage(0)]
    assert len(manifests(files(root))) == 2
    assert untrue(files(root)) == []


@pytest.mark.hazard(71)
def test_two_copies_of_a_home_deliver_the_same_range_independently(root: Path) -> None:
    copy = "11c0ffee00c0ffee00c0ffee00c0ffee"

    async def work() -> list[StreamCoverage]:
        sink = await opened(root)
        await sink.ship(chunk(10, 20), payload(7), 10)
        await sink.ship(chunk(10, 20, incarnation=copy), payload(7, 100), 10)
        return [await sink.coverage(STREAM, GATEWAY, each) for each in (INCARNATION, copy)]

    assert asyncio.run(work()) == [StreamCoverage(20, ((0, 10),))] * 2
    found = {index for path in root.rglob("*.parquet") for index in pq.read_table(path)["message_index"].to_pylist()}
    assert found == {*range(7), *range(100, 107)}


@pytest.mark.hazard(24)
def test_two_sinks_are_independent(root: Path, tmp_path: Path) -> None:
    async def work() -> StreamCoverage:
        await (await opened(root)).ship(chunk(0, 10), payload(7), 0)
        return await (await opened(tmp_path / "other")).coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == StreamCoverage(0)


@pytest.mark.hazard(22)
def test_new_rows_before_a_retry_do_not_cause_an_overlap(root: Path) -> None:
    """After a lost watermark and new rows, a larger range is answered with the existing coverage."""

    async def work() -> StreamCoverage:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(10, 20), payload(7, 7), 10)
        before = files(root)
        with pytest.raises(RangeOverlap) as overlap:
            await sink.ship(chunk(0, 25), payload(20), 0)
        with pytest.raises(RangeOverlap):
            await sink.ship(chunk(15, 25), payload(10), 10)
        with pytest.raises(RangeOverlap):
            await sink.ship(chunk(3, 4), payload(1), 0)
        assert files(root) == before
        return overlap.value.covered

    assert asyncio.run(work()) == StreamCoverage(20)


def test_a_hole_left_by_a_refusal_can_be_filled(root: Path) -> None:
    async def work() -> list[StreamCoverage]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(12, 20), payload(7, 7), 12)
        results = [await sink.coverage(STREAM, GATEWAY, INCARNATION)]
        sent = await sink.ship(chunk(10, 12), payload(2, 20), 20)
        before = files(root)
        assert await sink.ship(chunk(10, 12), payload(1, 20), 20) == sent
        assert files(root) == before
        return [*results, await sink.coverage(STREAM, GATEWAY, INCARNATION)]

    assert asyncio.run(work()) == [StreamCoverage(20, ((10, 12),)), StreamCoverage(20)]


@pytest.mark.hazard(89)
def test_foreign_files_in_the_manifest_folder_are_not_counted(root: Path) -> None:
    async def work() -> StreamCoverage:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        folder = (root / MANIFEST).parent
        real = json.loads((root / MANIFEST).read_bytes())

        def put(after: int, last: int, data: bytes, digits: str = "00c0ffee") -> None:
            (folder / f"{digits}.{after:020d}-{last:020d}.json").write_bytes(data)

        put(10, 20, b"")
        put(20, 30, b'{"v": 1')
        # The same eight digits but another incarnation; another gateway; another range than the name says.
        put(30, 40, json.dumps({**real, "after": 30, "last": 40, "incarnation": INCARNATION[:8] + "0" * 24}).encode())
        put(40, 50, json.dumps({**real, "after": 40, "last": 50, "gateway": "gw-other"}).encode())
        put(50, 60, json.dumps({**real, "after": 0, "last": 60}).encode())
        put(60, 70, json.dumps({**real, "after": 60, "last": 70}).encode(), digits="ffffffff")
        (folder / ".DS_Store").write_bytes(b"junk")
        (folder / "notes.json").write_bytes(b"junk")
        (folder / "folder").mkdir()
        return await sink.coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == StreamCoverage(10)


@pytest.mark.hazard(89)
@pytest.mark.parametrize(
    "foreign", [{"gateway": "gw-other"}, {"incarnation": INCARNATION[:8] + "f" * 24}, {"source": "Claude"}, None]
)
def test_a_foreign_manifest_under_our_name_is_reported_and_not_changed(
    root: Path, foreign: dict[str, str] | None
) -> None:
    """On a case-insensitive disk, two sources may share a folder."""

    async def work() -> str:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        parsed = {**json.loads((root / MANIFEST).read_bytes()), **foreign} if foreign else "junk"
        (root / MANIFEST).write_text(json.dumps(parsed))
        before = files(root)
        assert not await sink.has_chunk(chunk(0, 10))
        with pytest.raises(DestinationDenied, match="but rows of 'claude' must be stored there") as denied:
            await sink.ship(chunk(0, 10), payload(3), 0)
        assert files(root) == before
        return denied.value.kind

    assert asyncio.run(work()) == "foreign_manifest"


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
def test_every_source_has_its_own_folder_below_the_destination(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "archive"
    root.parent.mkdir()
    sources = ["a b", "a_b", "a%20b", "a+b", "../../up", "/etc/x", "..", ".", "a/b", "a\\b", "a\nb", "ü", "x" * 3_000]

    async def work() -> list[StreamCoverage]:
        sink = await opened(root)
        for source in sources:
            await sink.ship(chunk(0, 10, source=source), payload(2), 0)
        return [await sink.coverage(chunk(0, 1, source=each).stream, GATEWAY, INCARNATION) for each in sources]

    assert asyncio.run(work()) == [StreamCoverage(10)] * len(sources)
    held = files(tmp_path)
    assert all(path.startswith(f"deep/archive/{DATASET}/gateway={GATEWAY}/source=") for path in held)
    assert sorted(parsed["source"] for parsed in manifests(held)) == sorted(sources)
    assert untrue(files(root)) == []


@pytest.mark.hazard(61)
def test_a_link_in_the_destination_is_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    async def work() -> None:
        sink = await opened(root)
        (root / DATASET).symlink_to(elsewhere)
        with pytest.raises(DestinationDenied, match="is a link or a file"):
            await sink.ship(chunk(0, 10), payload(7), 0)

    asyncio.run(work())

    assert list(elsewhere.iterdir()) == []


async def met(root: Path, verb: str, work: Callable[[], Awaitable[None]]) -> BlobSink:
    """Return a sink, and run the work once, just before the sink performs the named operation."""
    pending = [work]

    async def meet(called: str, key: str) -> None:
        if called == verb and pending:
            await pending.pop()()

    return await opened(root, around=lambda store: Between(store, meet))


@pytest.mark.hazard(90)
@pytest.mark.parametrize("moment", ["write", "create", "version"])
def test_a_concurrent_writer_with_other_rows_leaves_a_matching_manifest(root: Path, moment: str) -> None:
    """Our sink checks before the other writes its manifest, and puts its object before or after the other's."""

    async def other() -> None:
        await (await opened(root)).ship(chunk(0, 10), payload(3), 0)

    async def work() -> None:
        await until_landed(await met(root, moment, other), chunk(0, 10), payload(7))

    asyncio.run(work())

    held = files(root)
    assert sorted(held) == sorted([OBJECT, MANIFEST])
    assert untrue(held) == []


@pytest.mark.hazard(90)
@pytest.mark.parametrize("moment", ["create", "version"])
def test_the_object_of_a_concurrent_writer_that_dies_is_not_reported_as_delivered(root: Path, moment: str) -> None:
    """The other's put replaced ours around our manifest: success is not reported before the manifest matches."""

    async def overwrite() -> None:
        (root / OBJECT).write_bytes(b"somebody else's")

    async def work() -> int:
        sink = await met(root, moment, overwrite)
        with pytest.raises(DestinationUnreachable, match="another process"):
            await sink.ship(chunk(0, 10), payload(7), 0)
        assert not await sink.has_chunk(chunk(0, 10))
        return await sink.ship(chunk(0, 10), payload(7), 0)

    sent = asyncio.run(work())

    assert untrue(files(root)) == []
    assert sent == len(files(root)[OBJECT])


@pytest.mark.hazard(90)
def test_a_manifest_that_does_not_match_its_object_is_replaced(root: Path) -> None:
    """A writer died between its put and its check, and a purge ran before the next attempt."""

    async def work() -> None:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        (root / OBJECT).write_bytes(b"of a writer that died")
        assert not await sink.has_chunk(chunk(0, 10))
        await sink.ship(chunk(0, 10), payload(2, 5), 0)
        assert await sink.has_chunk(chunk(0, 10))

    asyncio.run(work())

    assert untrue(files(root)) == []
    assert manifests(files(root))[0]["rows"] == 2


@pytest.mark.hazard(90)
def test_eight_concurrent_writers_leave_ten_matching_manifests(root: Path) -> None:
    chunks = [chunk(number * 10, number * 10 + 10) for number in range(10)]

    async def writer(number: int) -> None:
        sink = await opened(root)
        for each in chunks:
            await until_landed(sink, each, TablePayload(table(2, number * 100)))

    async def work() -> None:
        await asyncio.gather(*map(writer, range(8)))

    asyncio.run(work())

    held = files(root)
    assert len(manifests(held)) == 10
    assert len(held) == 20
    assert untrue(held) == []


@pytest.mark.parametrize("step", range(5))
def test_a_cancelled_ship_leaves_at_most_an_object_without_a_manifest(root: Path, step: int) -> None:
    calls: list[str] = []

    async def meet(verb: str, key: str) -> None:
        calls.append(verb)
        if len(calls) == step:
            task = asyncio.current_task()
            assert task
            task.cancel()

    async def work() -> None:
        sink = await opened(root, around=lambda store: Between(store, meet))
        task = asyncio.ensure_future(sink.ship(chunk(0, 10), payload(7), 0))
        if step:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        left = files(root)
        assert not [path for path in left if path.endswith(".tmp")]
        assert set(left) <= {OBJECT, MANIFEST}
        assert untrue(left) == []
        calls.extend(["again"] * 10)
        assert await sink.ship(chunk(0, 10), payload(7), 0) == len(files(root)[OBJECT])

    asyncio.run(work())

    assert calls[: max(step, 1)] == ["names", "write", "create", "version"][: max(step, 1)]
    assert untrue(files(root)) == []
    assert len(manifests(files(root))) == 1


def test_streams_share_one_sink_concurrently(root: Path) -> None:
    async def work() -> list[int]:
        sink = await opened(root)
        each = [sink.ship(chunk(0, 10, source=f"source-{number}"), payload(50), 0) for number in range(20)]
        return await asyncio.gather(*each)

    assert len(asyncio.run(work())) == 20
    assert len(manifests(files(root))) == 20
    assert untrue(files(root)) == []


@pytest.mark.parametrize("encoder", ["parquet", "jsonl", "jsonl-zstd"])
def test_a_sink_is_created_from_its_settings(root: Path, encoder: str) -> None:
    options = {"destination": str(root), "encoder": encoder}

    async def work() -> int:
        sink = BLOB.make(SinkSettings("archive", Home(root), options, (DATASET,), GATEWAY, INCARNATION))
        try:
            await sink.open()
            return await sink.ship(chunk(0, 10), sink.encode(table(7)), 0)
        finally:
            await sink.close()

    assert asyncio.run(work()) > 0
    assert untrue(files(root)) == []


def test_an_unknown_encoder_is_a_config_error(root: Path) -> None:
    options = {"destination": str(root), "encoder": "parqet"}

    with pytest.raises(ConfigError, match="unknown encoder 'parqet'"):
        BLOB.make(SinkSettings("archive", Home(root), options, (DATASET,), GATEWAY, INCARNATION))
