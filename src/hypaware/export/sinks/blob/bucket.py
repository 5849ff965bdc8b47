"""An object store as a destination: S3 and compatible stores, Google Cloud Storage, Azure.

An object is one atomic put. A large one is a multipart upload, which is visible as a whole or not at all. A cancelled
upload is aborted. A killed process leaves its parts invisible in the store until a lifecycle rule of the bucket removes
incomplete uploads.

The client retries rarely: the driver has its own retries, and an unreachable store must be detected within seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from hypaware.export.sinks.blob.address import BucketPlace
from hypaware.export.sinks.blob.answers import is_about_bucket, told
from hypaware.export.sinks.blob.credentials import Keys, keys_of, region_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

PART_BYTES = 8 << 20
_SINGLE_BYTES = 2 * PART_BYTES
# A slower connection counts as broken.
_BYTES_A_SECOND = 64 << 10
_RESPONSE_SECONDS = 20
_PAGE = 1000
# A prefix that no object has: listing it costs one request and checks access to the bucket.
_NOTHING = "_hypaware"


class _Stopped(Exception):
    pass


class Bucket:
    def __init__(self, location: BucketPlace, options: Mapping[str, Any]) -> None:
        self._location = location
        self._options = options
        self._opened: ObjectStore | None = None

    @property
    def _store(self) -> ObjectStore:
        assert self._opened is not None, "call open() first"
        return self._opened

    async def open(self) -> None:
        with told(self._location):
            self._opened = _connected(self._location, self._options)
            async with asyncio.timeout(2 * _RESPONSE_SECONDS):
                async for _ in obstore.list(self._store, _NOTHING, chunk_size=1):
                    break

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        with told(self._location):
            if len(data) > _SINGLE_BYTES:
                return await self._write_in_parts(key, data, content_type)
            async with asyncio.timeout(_timeout(len(data))):
                put = await obstore.put_async(
                    self._store, key, data, attributes={"Content-Type": content_type}, use_multipart=False
                )
            return put["e_tag"] or ""

    async def _write_in_parts(self, key: str, data: memoryview, content_type: str) -> str:
        stop = threading.Event()
        running = asyncio.ensure_future(
            obstore.put_async(
                self._store,
                key,
                _parts(data, stop),
                attributes={"Content-Type": content_type},
                chunk_size=PART_BYTES,
                # One at a time: no part may be in flight when the upload is aborted.
                max_concurrency=1,
            )
        )
        try:
            async with asyncio.timeout(_timeout(len(data))):
                put = await asyncio.shield(running)
        except BaseException:
            stop.set()
            await asyncio.wait([running])
            running.exception()
            raise
        return put["e_tag"] or ""

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        with told(self._location):
            try:
                async with asyncio.timeout(_timeout(len(data))):
                    await obstore.put_async(
                        self._store, key, data, attributes={"Content-Type": content_type}, mode="create"
                    )
            except exceptions.AlreadyExistsError:
                return False
            return True

    async def read(self, key: str) -> bytes | None:
        with told(self._location):
            try:
                async with asyncio.timeout(_RESPONSE_SECONDS):
                    found = await obstore.get_async(self._store, key)
                async with asyncio.timeout(_timeout(found.meta["size"])):
                    return bytes(await found.bytes_async())
            except FileNotFoundError as error:
                if is_about_bucket(error):
                    raise
                return None

    async def version(self, key: str) -> str | None:
        with told(self._location):
            try:
                async with asyncio.timeout(_RESPONSE_SECONDS):
                    found = await obstore.head_async(self._store, key)
            except FileNotFoundError as error:
                if is_about_bucket(error):
                    raise
                return None
            return found["e_tag"]

    async def remove(self, key: str) -> None:
        with told(self._location):
            try:
                async with asyncio.timeout(_RESPONSE_SECONDS):
                    await obstore.delete_async(self._store, key)
            except FileNotFoundError as error:
                if is_about_bucket(error):
                    raise

    async def names(self, folder: str, after: str) -> AsyncIterator[str]:
        pages = aiter(obstore.list(self._store, folder, offset=f"{folder}/{after}", chunk_size=_PAGE))
        while True:
            with told(self._location):
                try:
                    async with asyncio.timeout(2 * _RESPONSE_SECONDS):
                        page = await anext(pages)
                except StopAsyncIteration:
                    return
            for found in page:
                within, _, name = found["path"].rpartition("/")
                if within == folder:
                    yield name


def _connected(location: BucketPlace, options: Mapping[str, Any]) -> ObjectStore:
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=5),
        "timeout": timedelta(seconds=_timeout(PART_BYTES)),
        # Only if configured: keys and rows are sent unencrypted.
        "allow_http": location.endpoint.startswith("http://"),
    }
    retries: RetryConfig = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=10),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    prefix = location.prefix or None
    if location.scheme == "gs":
        return GCSStore(location.bucket, prefix=prefix, client_options=client, retry_config=retries)
    if location.scheme == "abfss":
        return AzureStore(
            location.bucket, account_name=location.account, prefix=prefix, client_options=client, retry_config=retries
        )
    keys = keys_of(options)
    return S3Store(
        location.bucket,
        prefix=prefix,
        region=region_of(options),
        client_options=client,
        retry_config=retries,
        credential_provider=_provider(keys) if keys else None,
        config={"endpoint": location.endpoint} if location.endpoint else None,
    )


def _provider(keys: Keys) -> Any:
    def provide() -> S3Credential:
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": None,
        }

    return provide


def _parts(data: memoryview, stop: threading.Event) -> Iterator[memoryview]:
    for start in range(0, len(data), PART_BYTES):
        if stop.is_set():
            raise _Stopped
        yield data[start : start + PART_BYTES]


def _timeout(size: int) -> float:
    return _RESPONSE_SECONDS + size / _BYTES_A_SECOND
