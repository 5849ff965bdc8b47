"""Delivery into a folder: each chunk once, and a manifest that is true, whoever came in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from hypaware.errors import ConfigError
from hypaware.export.encoders.jsonl import JSONL
from hypaware.export.payload import Rows
from hypaware.export.sink import Delivered, Denied, Destination, Overlap, SinkSettings, Unreachable
from hypaware.export.sinks.blob import BLOB, keys
from hypaware.export.sinks.blob.sink import BlobSink
from hypaware.home import Home
from tests.blob_destination import (
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
from tests.rows import DATASET

STREAM = chunk(0, 1).stream
OBJECT = keys.object_key(chunk(0, 10), "parquet")
MANIFEST = keys.manifest_key(chunk(0, 10))


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
    (said,) = manifests(held)
    assert (said["after"], said["last"], said["rows"]) == (0, 10, 7)
    assert (said["gateway"], said["incarnation"], said["source"]) == (GATEWAY, INCARNATION, "claude")
    assert untrue(held) == []


def test_others_read_the_rows_by_the_manifests(root: Path) -> None:
    async def work() -> None:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(10, 20), payload(5, 7), 10)

    asyncio.run(work())

    named = [str(root / each["key"]) for said in manifests(files(root)) for each in said["objects"]]
    by_arrow = [index for path in named for index in pq.read_table(path).column("message_index").to_pylist()]
    by_duckdb = duckdb.execute("SELECT message_index FROM read_parquet(?) ORDER BY 1", [named]).fetchall()
    assert by_arrow == [index for (index,) in by_duckdb] == list(range(12))


def test_a_chunk_that_is_there_is_not_written_again(root: Path) -> None:
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


def test_the_objects_are_of_the_encoder_that_was_chosen(root: Path) -> None:
    async def work() -> None:
        await (await opened(root, JSONL)).ship(chunk(0, 10), payload(7, tool_args={"a": 1}), 0)

    asyncio.run(work())

    path = root / keys.object_key(chunk(0, 10), "jsonl.gz")
    assert duckdb.execute("SELECT sum(tool_args.a) FROM read_json(?)", [str(path)]).fetchone() == (7,)


def test_landed_is_what_has_a_manifest_and_the_object_that_it_names(root: Path) -> None:
    async def work() -> list[bool]:
        sink = await opened(root)
        told = [await sink.has_chunk(chunk(0, 10))]
        await sink.ship(chunk(0, 10), payload(7), 0)
        told += [await sink.has_chunk(chunk(0, 10)), await sink.has_chunk(chunk(0, 9)), await sink.has_chunk(chunk(1, 10))]
        (root / OBJECT).write_bytes((root / OBJECT).read_bytes()[:-1])
        told += [await sink.has_chunk(chunk(0, 10))]
        (root / OBJECT).unlink()
        return [*told, await sink.has_chunk(chunk(0, 10))]

    assert asyncio.run(work()) == [False, True, False, False, False, False]


def test_an_object_without_a_manifest_did_not_land(root: Path) -> None:
    async def work() -> tuple[bool, Delivered]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        (root / MANIFEST).unlink()
        return await sink.has_chunk(chunk(0, 10)), await sink.coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == (False, Delivered(0))


@pytest.mark.hazard(35)
@pytest.mark.hazard(90)
@pytest.mark.parametrize("left", [b"", b"half an obj", b"x" * 1_000_000])
def test_a_retry_after_a_purge_replaces_what_the_first_try_left(root: Path, left: bytes) -> None:
    """The rows are others by now: the hash must be that of what is stored, and the first object must not stop it."""

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
def test_two_machines_with_one_prefix_keep_their_rows_apart(root: Path) -> None:
    async def work() -> list[Delivered]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(0, 25, gateway_id="gw-other"), payload(3), 0)
        told = [await sink.coverage(STREAM, each, INCARNATION) for each in (GATEWAY, "gw-other", "gw-third")]
        assert not await sink.has_chunk(chunk(0, 25))
        return told

    assert asyncio.run(work()) == [Delivered(10), Delivered(25), Delivered(0)]
    assert len(manifests(files(root))) == 2
    assert untrue(files(root)) == []


@pytest.mark.hazard(71)
def test_two_copies_of_a_home_deliver_the_same_range_side_by_side(root: Path) -> None:
    copy = "11c0ffee00c0ffee00c0ffee00c0ffee"

    async def work() -> list[Delivered]:
        sink = await opened(root)
        await sink.ship(chunk(10, 20), payload(7), 10)
        await sink.ship(chunk(10, 20, incarnation=copy), payload(7, 100), 10)
        return [await sink.coverage(STREAM, GATEWAY, each) for each in (INCARNATION, copy)]

    assert asyncio.run(work()) == [Delivered(20, ((0, 10),))] * 2
    found = {index for path in root.rglob("*.parquet") for index in pq.read_table(path)["message_index"].to_pylist()}
    assert found == {*range(7), *range(100, 107)}


@pytest.mark.hazard(24)
def test_two_sinks_know_nothing_of_each_other(root: Path, tmp_path: Path) -> None:
    async def work() -> Delivered:
        await (await opened(root)).ship(chunk(0, 10), payload(7), 0)
        return await (await opened(tmp_path / "other")).coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == Delivered(0)


@pytest.mark.hazard(22)
def test_a_unit_that_grew_before_its_retry_does_not_overlap(root: Path) -> None:
    """Delivered, watermark lost, new rows: what comes again under a larger range is turned away, with what is there."""

    async def work() -> Delivered:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(10, 20), payload(7, 7), 10)
        before = files(root)
        with pytest.raises(Overlap) as overlap:
            await sink.ship(chunk(0, 25), payload(20), 0)
        with pytest.raises(Overlap):
            await sink.ship(chunk(15, 25), payload(10), 10)
        with pytest.raises(Overlap):
            await sink.ship(chunk(3, 4), payload(1), 0)
        assert files(root) == before
        return overlap.value.covered

    assert asyncio.run(work()) == Delivered(20)


def test_a_hole_that_was_left_by_a_refusal_can_be_filled(root: Path) -> None:
    async def work() -> list[Delivered]:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(12, 20), payload(7, 7), 12)
        told = [await sink.coverage(STREAM, GATEWAY, INCARNATION)]
        sent = await sink.ship(chunk(10, 12), payload(2, 20), 20)
        before = files(root)
        assert await sink.ship(chunk(10, 12), payload(1, 20), 20) == sent
        assert files(root) == before
        return [*told, await sink.coverage(STREAM, GATEWAY, INCARNATION)]

    assert asyncio.run(work()) == [Delivered(20, ((10, 12),)), Delivered(20)]


@pytest.mark.hazard(89)
def test_what_is_not_a_manifest_of_ours_is_not_counted(root: Path) -> None:
    async def work() -> Delivered:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        folder = (root / MANIFEST).parent
        real = json.loads((root / MANIFEST).read_bytes())

        def put(after: int, last: int, data: bytes, digits: str = "00c0ffee") -> None:
            (folder / f"{digits}.{after:020d}-{last:020d}.json").write_bytes(data)

        put(10, 20, b"")
        put(20, 30, b'{"v": 1')
        # The same eight digits, another incarnation; another gateway; another range than the name says.
        put(30, 40, json.dumps({**real, "after": 30, "last": 40, "incarnation": INCARNATION[:8] + "0" * 24}).encode())
        put(40, 50, json.dumps({**real, "after": 40, "last": 50, "gateway": "gw-other"}).encode())
        put(50, 60, json.dumps({**real, "after": 0, "last": 60}).encode())
        put(60, 70, json.dumps({**real, "after": 60, "last": 70}).encode(), digits="ffffffff")
        (folder / ".DS_Store").write_bytes(b"junk")
        (folder / "notes.json").write_bytes(b"junk")
        (folder / "folder").mkdir()
        return await sink.coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == Delivered(10)


@pytest.mark.hazard(89)
@pytest.mark.parametrize(
    "foreign", [{"gateway": "gw-other"}, {"incarnation": INCARNATION[:8] + "f" * 24}, {"source": "Claude"}, None]
)
def test_a_manifest_of_somebody_else_in_our_place_is_left_alone_and_told(
    root: Path, foreign: dict[str, str] | None
) -> None:
    """On a disk that does not tell A from a, two sources may meet in one folder."""

    async def work() -> str:
        sink = await opened(root)
        await sink.ship(chunk(0, 10), payload(7), 0)
        said = {**json.loads((root / MANIFEST).read_bytes()), **foreign} if foreign else "junk"
        (root / MANIFEST).write_text(json.dumps(said))
        before = files(root)
        assert not await sink.has_chunk(chunk(0, 10))
        with pytest.raises(Denied, match="but rows of 'claude' must be stored there") as denied:
            await sink.ship(chunk(0, 10), payload(3), 0)
        assert files(root) == before
        return denied.value.kind

    assert asyncio.run(work()) == "foreign_manifest"


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
def test_every_source_has_its_own_place_below_the_destination(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "archive"
    root.parent.mkdir()
    sources = ["a b", "a_b", "a%20b", "a+b", "../../up", "/etc/x", "..", ".", "a/b", "a\\b", "a\nb", "ü", "x" * 3_000]

    async def work() -> list[Delivered]:
        sink = await opened(root)
        for source in sources:
            await sink.ship(chunk(0, 10, source=source), payload(2), 0)
        return [await sink.coverage(chunk(0, 1, source=each).stream, GATEWAY, INCARNATION) for each in sources]

    assert asyncio.run(work()) == [Delivered(10)] * len(sources)
    held = files(tmp_path)
    assert all(path.startswith(f"deep/archive/{DATASET}/gateway={GATEWAY}/source=") for path in held)
    assert sorted(said["source"] for said in manifests(held)) == sorted(sources)
    assert untrue(files(root)) == []


@pytest.mark.hazard(61)
def test_a_link_in_the_destination_leads_nowhere(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    async def work() -> None:
        sink = await opened(root)
        (root / DATASET).symlink_to(elsewhere)
        with pytest.raises(Denied, match="is a link or a file"):
            await sink.ship(chunk(0, 10), payload(7), 0)

    asyncio.run(work())

    assert list(elsewhere.iterdir()) == []


async def met(root: Path, verb: str, work: Callable[[], Awaitable[None]]) -> BlobSink:
    """A sink and somebody who does the work once, just before the sink does what the verb says."""
    pending = [work]

    async def meet(called: str, key: str) -> None:
        if called == verb and pending:
            await pending.pop()()

    return await opened(root, around=lambda store: Between(store, meet))


@pytest.mark.hazard(90)
@pytest.mark.parametrize("moment", ["write", "create", "version"])
def test_another_writer_with_other_rows_delivers_in_between(root: Path, moment: str) -> None:
    """Ours looked for a manifest before the other's was there, and puts its object before or after the other's."""

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
def test_another_writers_object_comes_in_between_and_it_dies(root: Path, moment: str) -> None:
    """Its put replaced ours around the time of our manifest: success is not told before the manifest is true."""

    async def overwrite() -> None:
        (root / OBJECT).write_bytes(b"somebody else's")

    async def work() -> int:
        sink = await met(root, moment, overwrite)
        with pytest.raises(Unreachable, match="another process"):
            await sink.ship(chunk(0, 10), payload(7), 0)
        assert not await sink.has_chunk(chunk(0, 10))
        return await sink.ship(chunk(0, 10), payload(7), 0)

    sent = asyncio.run(work())

    assert untrue(files(root)) == []
    assert sent == len(files(root)[OBJECT])


@pytest.mark.hazard(90)
def test_a_manifest_that_is_not_true_is_replaced_where_the_rows_are_others_now(root: Path) -> None:
    """A writer died between its put and its look, and a purge came before the next try."""

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
def test_eight_writers_with_eight_versions_of_ten_chunks_leave_ten_true_manifests(root: Path) -> None:
    chunks = [chunk(number * 10, number * 10 + 10) for number in range(10)]

    async def writer(number: int) -> None:
        sink = await opened(root)
        for each in chunks:
            await until_landed(sink, each, Rows(table(2, number * 100)))

    async def work() -> None:
        await asyncio.gather(*map(writer, range(8)))

    asyncio.run(work())

    held = files(root)
    assert len(manifests(held)) == 10
    assert len(held) == 20
    assert untrue(held) == []


@pytest.mark.parametrize("step", range(5))
def test_cancelled_anywhere_it_leaves_an_object_without_a_manifest_at_most(root: Path, step: int) -> None:
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


def test_streams_go_side_by_side_through_one_sink(root: Path) -> None:
    async def work() -> list[int]:
        sink = await opened(root)
        each = [sink.ship(chunk(0, 10, source=f"source-{number}"), payload(50), 0) for number in range(20)]
        return await asyncio.gather(*each)

    assert len(asyncio.run(work())) == 20
    assert len(manifests(files(root))) == 20
    assert untrue(files(root)) == []


@pytest.mark.parametrize("encoder", ["parquet", "jsonl", "jsonl-zstd"])
def test_a_sink_is_made_of_its_settings(root: Path, encoder: str) -> None:
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


def test_an_encoder_that_nobody_has_is_an_error_of_the_config(root: Path) -> None:
    options = {"destination": str(root), "encoder": "parqet"}

    with pytest.raises(ConfigError, match="unknown encoder 'parqet'"):
        BLOB.make(SinkSettings("archive", Home(root), options, (DATASET,), GATEWAY, INCARNATION))
