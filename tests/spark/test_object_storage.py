"""Objects of a bucket with the interface of a path, on a real S3 server."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.engine import executors
from hypaware.errors import NotReady
from hypaware.home import storage
from hypaware.home.storage import BucketSettings, ObjectPath, parse_location
from tests.support.s3_server import S3Server

BUCKET = "objects"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3Server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3Server.secret_key)
    with S3Server(tmp_path) as server:
        server.make_bucket(BUCKET)
        storage.register_bucket(BUCKET, BucketSettings(server.endpoint, "us-east-1", path_style=True))
        storage.register_bucket("missing", BucketSettings(server.endpoint, "us-east-1", path_style=True))
        yield ObjectPath(f"s3://{BUCKET}/prefix")


def _put(path: ObjectPath, data: bytes) -> None:
    with storage.spool_object() as file:
        file.write(data)
        storage.put_file(path, file)


def test_an_object_is_read_listed_and_removed_like_a_file(root: ObjectPath) -> None:
    # Names of sources are percent-encoded in the key itself.
    path = root / "data" / "_hyp_source=a%3Ab%2E" / "day=1" / "flush-1.parquet"
    _put(path, b"0123456789")
    assert str(path) == f"s3://{BUCKET}/prefix/data/_hyp_source=a%3Ab%2E/day=1/flush-1.parquet"
    assert parse_location(str(path)) == path
    assert (path.read_bytes(), path.stat().st_size, path.is_file()) == (b"0123456789", 10, True)
    assert list((root / "data").glob("*/*/flush-*.parquet")) == list(root.rglob("*.parquet")) == [path]
    assert list(storage.list_files(root)) == [(path, 10)]
    assert not list((root / "data").glob("*.parquet"))
    assert pickle.loads(pickle.dumps(path)) == path
    path.unlink()
    path.unlink(missing_ok=True)
    assert not path.exists()
    with pytest.raises(FileNotFoundError) as missing:
        path.read_bytes()
    assert missing.value.filename == str(path)


def test_a_large_object_is_read_in_ranges(root: ObjectPath) -> None:
    data = os.urandom(33 << 20)
    _put(root / "large", data)
    with (root / "large").open("rb") as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == data[-4:]
        file.seek(1000)
        assert file.read(1 << 20) == data[1000 : 1000 + (1 << 20)]


def test_an_object_is_created_and_never_replaced(root: ObjectPath) -> None:
    _put(root / "one", b"first")
    with pytest.raises(FileExistsError):
        _put(root / "one", b"another")
    assert (root / "one").read_bytes() == b"first"


def test_a_function_that_needs_a_file_fails_instead_of_touching_another_one(root: ObjectPath) -> None:
    with pytest.raises(TypeError, match="not a file"):
        os.stat(root / "one")  # noqa: PTH116


def test_a_bucket_is_checked_before_it_is_used(root: ObjectPath, tmp_path: Path) -> None:
    storage.check_bucket(root)
    storage.check_bucket(root)
    with pytest.raises(NotReady, match="missing") as told:
        storage.check_bucket(ObjectPath("s3://missing/prefix"))
    assert told.value.kind == "no_bucket"
    storage.register_bucket(BUCKET, BucketSettings("http://127.0.0.1:1", "us-east-1", True, str(tmp_path / "none")))
    with pytest.raises(NotReady, match="none does not exist"):
        storage.check_bucket(root)


def test_an_executor_that_cannot_use_the_bucket_is_named(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = root / ".probe"
    storage.write_object(probe, probe.name.encode())
    found = executors.probe_executor(1, [probe])
    assert (found.unseen, found.error) == ((), "")
    assert all(path.exists() for path in found.written)
    assert executors.probe_executor(1, [root / "other"]).unseen == (str(root),)

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another bucket")
    storage._stores.clear()
    refused = executors.probe_executor(1, [probe])
    message = executors._not_shared(refused, refused.unseen, in_bucket=True).message
    assert f"the Spark executor on {refused.machine} cannot write to the lake: the bucket {BUCKET}" in message
    assert "does not accept the credentials" in message
    assert "Each worker needs the keys of the bucket" in message
