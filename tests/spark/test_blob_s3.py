"""The blob sink with a real S3 server, which checks signatures, pages its listings, and is killed during a put."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from hypaware.export.sink import (
    Destination,
    DestinationDenied,
    DestinationUnreachable,
    RangeOverlap,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.sinks.blob import blob_sink
from hypaware.export.sinks.blob.blob_sink import StoredObject, make_store
from hypaware.export.sinks.blob.object_store import PART_BYTES
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
from tests.support.ports import held_port
from tests.support.rows import DATASET
from tests.support.s3_server import ENVIRONMENT, SECRET_KEY_ENV, S3Server

pytestmark = pytest.mark.spark

STREAM = chunk(0, 1).stream
OBJECT = blob_sink.object_key(chunk(0, 10), "parquet")
MANIFEST = blob_sink.manifest_key(chunk(0, 10))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> Path:
    """Return the folder of the test's bucket."""
    return server.make_bucket(f"bucket-{abs(hash(request.node.nodeid)):x}"[:40])


@pytest.fixture
def options(server: S3Server, bucket: Path) -> dict[str, Any]:
    return server.options(bucket.name, "some prefix/ü%20")


@pytest.fixture
def root(bucket: Path) -> Path:
    """Return the folder in which the server stores the prefix."""
    return bucket / "some prefix" / "ü%20"


def test_a_chunk_is_an_object_and_a_manifest_that_other_tools_read(
    server: S3Server, options: dict[str, Any], bucket: Path, root: Path
) -> None:
    async def work() -> tuple[Destination, int, bool]:
        sink = await opened(options)
        destination = await sink.open()
        sent = await sink.ship(chunk(0, 10), payload(7), 0)
        assert await sink.ship(chunk(0, 10), payload(7), 0) == sent
        return destination, sent, await sink.has_chunk(chunk(0, 10))

    destination, sent, landed = asyncio.run(work())

    held = files(root)
    assert landed
    assert destination == Destination(f"s3://{bucket.name}/some prefix/ü%20?endpoint={server.endpoint}")
    assert sorted(held) == sorted([OBJECT, MANIFEST])
    assert sent == len(held[OBJECT])
    assert untrue(held) == []
    another = fs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        endpoint_override=server.endpoint,
        region="us-east-1",
    )
    (said,) = manifests(held)
    read = pq.read_table(f"{bucket.name}/some prefix/ü%20/{said['objects'][0]['key']}", filesystem=another)
    assert read.to_pylist() == table(7).to_pylist()


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
def test_every_source_has_its_own_folder(options: dict[str, Any], root: Path) -> None:
    sources = ["a b", "a_b", "a%20b", "a+b", "../../up", "/etc/x", "..", ".", "a/b", "a\\b", "ü", "*?#&", "x" * 3_000]

    async def work() -> list[StreamCoverage]:
        sink = await opened(options)
        for source in sources:
            await sink.ship(chunk(0, 10, source=source), payload(2), 0)
        return [await sink.coverage(chunk(0, 1, source=each).stream, GATEWAY, INCARNATION) for each in sources]

    assert asyncio.run(work()) == [StreamCoverage(10)] * len(sources)
    held = files(root)
    assert len(held) == 2 * len(sources)
    assert all(path.startswith(f"{DATASET}/gateway={GATEWAY}/source=") for path in held)
    assert sorted(said["source"] for said in manifests(held)) == sorted(sources)
    assert untrue(held) == []


@pytest.mark.hazard(35)
def test_one_of_eight_concurrent_writers_creates_each_key(options: dict[str, Any], root: Path) -> None:
    async def work() -> list[list[bool]]:
        stores = [make_store(options) for _ in range(8)]
        for store in stores:
            await store.open()
        return [
            await asyncio.gather(
                *(store.create(f"{key}.json", b"%d" % who, "application/json") for who, store in enumerate(stores))
            )
            for key in range(40)
        ]

    created = asyncio.run(work())

    assert [each.count(True) for each in created] == [1] * 40
    held = files(root)
    assert [int(held[f"{key}.json"]) for key in range(40)] == [each.index(True) for each in created]


@pytest.mark.hazard(90)
def test_eight_concurrent_writers_leave_five_matching_manifests(options: dict[str, Any], root: Path) -> None:
    chunks = [chunk(number * 10, number * 10 + 10) for number in range(5)]

    async def writer(number: int) -> None:
        sink = await opened(options)
        for each in chunks:
            await until_landed(sink, each, TablePayload(table(2, number * 100)))

    async def work() -> None:
        await asyncio.gather(*map(writer, range(8)))

    asyncio.run(work())

    held = files(root)
    assert len(held) == 10
    assert len(manifests(held)) == 5
    assert untrue(held) == []


@pytest.mark.hazard(90)
@pytest.mark.parametrize("moment", ["create", "version"])
def test_the_object_of_a_concurrent_writer_that_dies_is_not_reported_as_delivered(
    options: dict[str, Any], root: Path, moment: str
) -> None:
    async def work() -> int:
        other = make_store(options)
        await other.open()
        pending = [other.write(OBJECT, memoryview(b"somebody else's"), "text/plain")]

        async def meet(verb: str, key: str) -> None:
            if verb == moment and pending:
                await pending.pop()

        sink = await opened(options, around=lambda store: Between(store, meet))
        with pytest.raises(DestinationUnreachable, match="another process"):
            await sink.ship(chunk(0, 10), payload(7), 0)
        assert not await sink.has_chunk(chunk(0, 10))
        return await sink.ship(chunk(0, 10), payload(7), 0)

    sent = asyncio.run(work())

    held = files(root)
    assert sent == len(held[OBJECT])
    assert untrue(held) == []


@pytest.mark.hazard(22)
def test_new_rows_before_a_retry_do_not_cause_an_overlap(options: dict[str, Any], root: Path) -> None:
    async def work() -> StreamCoverage:
        sink = await opened(options)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(10, 20), payload(7, 7), 10)
        with pytest.raises(RangeOverlap) as overlap:
            await sink.ship(chunk(10, 25), payload(20), 10)
        return overlap.value.covered

    assert asyncio.run(work()) == StreamCoverage(20)
    assert len(manifests(files(root))) == 2


def test_more_manifests_than_a_page_holds_are_all_counted(options: dict[str, Any]) -> None:
    count = 2_300
    stored = StoredObject("x", 1, 1, "0" * 64)

    async def work() -> StreamCoverage:
        store = make_store(options)
        await store.open()
        turns = asyncio.Semaphore(32)

        async def put(number: int) -> None:
            what = chunk(number * 10, number * 10 + 10)
            said = blob_sink.make_manifest(what, stored, datetime.now(UTC))
            async with turns:
                assert await store.create(
                    blob_sink.manifest_key(what), blob_sink.format_manifest(said), "application/json"
                )

        await asyncio.gather(*(put(number) for number in range(count) if number != 1_500))
        sink = await opened(options)
        return await sink.coverage(STREAM, GATEWAY, INCARNATION)

    assert asyncio.run(work()) == StreamCoverage(count * 10, ((15_000, 15_010),))


def large(parts: int) -> TablePayload:
    """Return rows that need this many parts even when compressed."""
    return TablePayload(table(1, content_text=os.urandom(parts * PART_BYTES).hex()))


def test_a_large_object_arrives_whole(options: dict[str, Any], root: Path) -> None:
    rows = large(3)

    async def work() -> int:
        return await (await opened(options)).ship(chunk(0, 10), rows, 0)

    assert asyncio.run(work()) > 3 * PART_BYTES
    assert untrue(files(root)) == []
    assert pq.read_table(root / OBJECT).column("content_text") == rows.table.column("content_text")


async def when(condition: Callable[[], object]) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


def unfinished(bucket: Path) -> list[Path]:
    """Return the parts of uploads in the server's storage."""
    return [path for path in bucket.rglob("*") if "mpu" in str(path.relative_to(bucket)) and path.is_file()]


def test_a_cancelled_multipart_upload_leaves_no_parts(options: dict[str, Any], bucket: Path, root: Path) -> None:
    rows = large(5)

    async def work() -> None:
        sink = await opened(options)
        shipping = asyncio.ensure_future(sink.ship(chunk(0, 10), rows, 0))
        await when(lambda: unfinished(bucket))
        shipping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shipping
        assert unfinished(bucket) == []
        assert manifests(files(root)) == []
        await sink.ship(chunk(0, 10), rows, 0)

    asyncio.run(work())

    assert untrue(files(root)) == []
    assert len(manifests(files(root))) == 1


@pytest.mark.hazard(35)
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_put_is_retried_after_the_server_was_killed(tmp_path: Path, size: str) -> None:
    with S3Server(tmp_path) as server:
        bucket = server.make_bucket("bucket")
        rows = large(5) if size == "large" else payload(7)
        pending = [True]

        async def meet(verb: str, key: str) -> None:
            if size == "small" and verb == "create" and pending:
                pending.pop()
                server.kill()

        async def work() -> bool:
            sink = await opened(server.options("bucket", "x"), around=lambda store: Between(store, meet))
            shipping = asyncio.ensure_future(sink.ship(chunk(0, 10), rows, 0))
            if size == "large":
                await when(lambda: unfinished(bucket))
                server.kill()
            with pytest.raises(DestinationUnreachable):
                await shipping
            with pytest.raises(DestinationUnreachable, match="does not respond"):
                await sink.has_chunk(chunk(0, 10))
            server.start()
            assert not await sink.has_chunk(chunk(0, 10))
            await sink.ship(chunk(0, 10), rows, 0)
            return await sink.has_chunk(chunk(0, 10))

        assert asyncio.run(work())
        assert untrue(files(bucket / "x")) == []
        assert len(manifests(files(bucket / "x"))) == 1


def test_a_missing_bucket_is_denied(server: S3Server) -> None:
    with pytest.raises(DestinationDenied, match="the bucket nobodys-bucket does not exist") as denied:
        asyncio.run(opened(server.options("nobodys-bucket")))

    assert denied.value.kind == "no_such_bucket"


def test_a_bucket_that_disappeared_is_denied(options: dict[str, Any], bucket: Path) -> None:
    async def work() -> None:
        sink = await opened(options)
        bucket.rmdir()
        await sink.ship(chunk(0, 10), payload(7), 0)

    with pytest.raises(DestinationDenied) as denied:
        asyncio.run(work())

    assert denied.value.kind == "no_such_bucket"


def test_rejected_credentials_are_denied(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_KEY_ENV, "not-the-secret")

    with pytest.raises(DestinationDenied, match="The credentials are not accepted") as denied:
        asyncio.run(opened(options))

    assert denied.value.kind == "bad_credentials"
    assert "not-the-secret" not in str(denied.value)


def test_a_session_token_of_the_environment_is_not_used_with_other_keys(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "else")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")

    assert asyncio.run(opened(options)) is not None


def test_standard_aws_variables_are_sufficient(
    server: S3Server, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)

    async def work() -> None:
        await (await opened({"destination": options["destination"]})).ship(chunk(0, 10), payload(7), 0)

    asyncio.run(work())

    assert untrue(files(root)) == []
    assert len(files(root)) == 2


def test_a_stopped_server_is_unreachable(options: dict[str, Any]) -> None:
    with held_port() as nobody, pytest.raises(DestinationUnreachable, match="does not respond"):
        asyncio.run(opened({**options, "endpoint": f"http://127.0.0.1:{nobody}"}))
