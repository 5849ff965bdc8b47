"""An object store as a destination: S3 and compatible stores, Google Cloud Storage, Azure.

An object is one atomic put. A large one is a multipart upload, which is visible as a whole or not at all. A cancelled
upload is aborted; the parts of a killed process stay invisible until a lifecycle rule of the bucket removes them. The
client retries rarely: the driver has its own retries, and must detect an unreachable store within seconds. It uses the
proxy variables (`HTTPS_PROXY`, `NO_PROXY`, …) and `SSL_CERT_FILE` of the engine's environment.

The credentials of S3 are found in this order: the environment variables named by `access_key_env` and
`secret_key_env`; `AWS_ACCESS_KEY_ID` and its companions (obstore); the profile (`AWS_PROFILE`, otherwise `default`) in
the files of the AWS tools, if it holds keys; the identity of the machine (obstore). No message contains them.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from hypaware.errors import NotReady
from hypaware.export.sink import DestinationBusy, DestinationDenied, DestinationUnreachable
from hypaware.export.sinks.blob import BucketLocation
from hypaware.home import s3_keys
from hypaware.home.s3_keys import S3Keys

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_OPTIONS = ("access_key_env", "secret_key_env")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_NO_IDENTITY = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|/metadata/identity|MissingCredential")
_REGION = re.compile(r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint")
# Error codes with status 400 or 409 that a retry may cure: the connection broke, or a concurrent request won.
_PASSING = re.compile(r"RequestTimeout|IncompleteBody|ConditionalRequestConflict|OperationAborted")
_KEYS = "export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… && hyp engine stop"
PART_BYTES = 8 << 20
_SINGLE_BYTES = 2 * PART_BYTES
# A slower connection counts as broken.
_BYTES_A_SECOND = 64 << 10
_RESPONSE_SECONDS = 20
_PAGE = 1000
# A prefix that no object has: listing it costs one request and checks access to the bucket.
_NOTHING = "_hypaware-none"
# An empty object that shows whether the store honours conditional writes.
_CHECK = "_hypaware/create-only"


class _Stopped(Exception):
    pass


class BucketStore:
    def __init__(self, location: BucketLocation, options: Mapping[str, Any]) -> None:
        self._location = location
        self._options = options
        self._opened: ObjectStore | None = None
        self._is_checked = False

    @property
    def _store(self) -> ObjectStore:
        assert self._opened is not None, "call open() first"
        return self._opened

    async def open(self) -> None:
        async with self._request(2 * _RESPONSE_SECONDS):
            self._opened = _connect(self._location, self._options)
            async for _ in obstore.list(self._store, _NOTHING, chunk_size=1):
                break

    @asynccontextmanager
    async def _request(self, seconds: float) -> AsyncIterator[None]:
        with translate_errors(self._location):
            async with asyncio.timeout(seconds):
                yield

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        await self._require_create_only()
        attributes = {"Content-Type": content_type}
        async with self._request(_timeout(len(data))):
            if len(data) <= _SINGLE_BYTES:
                put = await obstore.put_async(self._store, key, data, attributes=attributes, use_multipart=False)
                return put["e_tag"] or ""
            stop = threading.Event()
            # One part at a time: none may be in flight when the upload is aborted.
            upload = obstore.put_async(
                self._store, key, _parts(data, stop), attributes=attributes, chunk_size=PART_BYTES, max_concurrency=1
            )
            running = asyncio.ensure_future(upload)
            try:
                put = await asyncio.shield(running)
            except BaseException:
                stop.set()
                await asyncio.wait([running])
                running.exception()
                raise
            return put["e_tag"] or ""

    async def _require_create_only(self) -> None:
        """Check, before the first object, that the store does not replace an object when told to create one.

        Some stores accept the condition and ignore it. Two homes could then replace each other's manifests.
        """
        probe = (_CHECK, b"", "text/plain")
        # The second attempt always finds the object, unless the store ignores the condition.
        if not self._is_checked and await self.create(*probe) and await self.create(*probe):
            raise DestinationDenied(
                f"{self._location.address} replaces objects that must only be created: it ignores If-None-Match. "
                "Use a store that supports conditional writes",
                kind="unsupported_store",
                repair="hyp config show",
            )
        self._is_checked = True

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        attributes = {"Content-Type": content_type}
        try:
            async with self._request(_timeout(len(data))):
                await obstore.put_async(self._store, key, data, attributes=attributes, mode="create")
        except exceptions.AlreadyExistsError:
            return False
        return True

    async def read(self, key: str) -> bytes | None:
        try:
            async with self._request(_RESPONSE_SECONDS):
                found = await obstore.get_async(self._store, key)
            async with self._request(_timeout(found.meta["size"])):
                return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None

    async def version(self, key: str) -> str | None:
        try:
            async with self._request(_RESPONSE_SECONDS):
                found = await obstore.head_async(self._store, key)
        except FileNotFoundError:
            return None
        return found["e_tag"]

    async def remove(self, key: str) -> None:
        with suppress(FileNotFoundError):
            async with self._request(_RESPONSE_SECONDS):
                await obstore.delete_async(self._store, key)

    async def names(self, folder: str, after: str) -> AsyncIterator[str]:
        pages = aiter(obstore.list(self._store, folder, offset=f"{folder}/{after}", chunk_size=_PAGE))
        while True:
            async with self._request(2 * _RESPONSE_SECONDS):
                page = await anext(pages, None)
            if page is None:
                return
            for found in page:
                within, _, name = found["path"].rpartition("/")
                if within == folder:
                    yield name


def _parts(data: memoryview, stop: threading.Event) -> Iterator[memoryview]:
    for start in range(0, len(data), PART_BYTES):
        if stop.is_set():
            raise _Stopped
        yield data[start : start + PART_BYTES]


def _timeout(size: int) -> float:
    return _RESPONSE_SECONDS + size / _BYTES_A_SECOND


def _connect(location: BucketLocation, options: Mapping[str, Any]) -> ObjectStore:
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
    keys = find_keys(options)
    provider: Any = (lambda: asdict(keys)) if keys else None
    return S3Store(
        location.bucket,
        prefix=prefix,
        region=find_region(options),
        client_options=client,
        retry_config=retries,
        credential_provider=provider,
        config={"endpoint": location.endpoint} if location.endpoint else None,
    )


def find_keys(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> S3Keys | None:
    """Return the keys, or None to let obstore find them."""
    if any(options.get(option) for option in _OPTIONS):
        access_key, secret_key = (_read_variable(option, options.get(option), environment) for option in _OPTIONS)
        return S3Keys(access_key, secret_key)
    with _profile_errors():
        return s3_keys.find_profile_keys(environment)


def find_region(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    with _profile_errors():
        return s3_keys.find_region(options.get("region"), environment)


@contextmanager
def _profile_errors() -> Iterator[None]:
    try:
        yield
    except NotReady as error:
        raise DestinationDenied(error.message, kind=error.kind) from None


def _read_variable(option: str, name: Any, environment: Mapping[str, str]) -> str:
    if not name:
        raise DestinationDenied(
            f"{' and '.join(_OPTIONS)} must be set together; {option} is missing", kind="no_credentials"
        )
    if not (value := environment.get(str(name))):
        raise DestinationDenied(
            f"{option} names the environment variable {name}, which is not set in the engine's environment",
            kind="no_credentials",
            repair=f"export {name}=… && hyp engine stop",
        )
    return value


@contextmanager
def translate_errors(location: BucketLocation) -> Iterator[None]:
    """Translate obstore exceptions into DestinationDenied, -Busy or -Unreachable.

    AlreadyExistsError passes, and so does the FileNotFoundError of an object, but not that of a bucket.
    """
    try:
        yield
    except (exceptions.AlreadyExistsError, DestinationDenied, DestinationBusy, DestinationUnreachable):
        raise
    except TimeoutError:
        raise DestinationUnreachable(f"{location.address} did not respond in time") from None
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise _bucket_missing(location) from None
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _classify(str(error), location, isinstance(error, exceptions.UnauthenticatedError)) from None


def _classify(
    text: str, location: BucketLocation, unauthenticated: bool
) -> DestinationDenied | DestinationBusy | DestinationUnreachable:
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    new_keys = _KEYS if location.scheme == "s3" else None
    problem = f"{location.address} responded with {_reason(text, status)}"
    if _NO_IDENTITY.search(text):
        return DestinationDenied(
            f"no credentials for {location.address}: neither the environment nor a profile holds keys",
            kind="no_credentials",
            repair=new_keys,
        )
    if _REGION.search(text):
        problem = f"{problem}. Set the region of the sink"
        return DestinationDenied(problem, kind="wrong_region", repair="hyp config show")
    if status == 401 or unauthenticated or re.search("InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken", text):
        problem = f"{problem}. The credentials are not accepted"
        return DestinationDenied(problem, kind="bad_credentials", repair=new_keys)
    if status == 403:
        needed = "The sink needs permission to list, read and write below the prefix"
        return DestinationDenied(f"{problem}. {needed}", kind="no_permission")
    if status == 404 and _NO_BUCKET.search(text):
        return _bucket_missing(location)
    if status in (429, 503):
        return DestinationBusy(problem)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 425) and not _PASSING.search(text):
        return DestinationDenied(problem, kind="refused_by_store")
    if status == 501:
        return DestinationDenied(f"{problem}. The store must support conditional writes", kind="unsupported_store")
    return DestinationUnreachable(problem if status else f"{location.address} does not respond: {_reason(text, None)}")


def _bucket_missing(location: BucketLocation) -> DestinationDenied:
    kind = "container" if location.scheme == "abfss" else "bucket"
    return DestinationDenied(
        f"the {kind} {location.bucket} does not exist ({location.address}); create it first",
        kind="no_such_bucket",
        repair="hyp config show",
    )


def _reason(text: str, status: int | None) -> str:
    """Return the cause, without the request's signature and the library's internals."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{status} {code[1]}" + (f": {message[1]}" if message else "")
    return f"{status}" if status else text.partition("\n")[0].rpartition(" - ")[2][:200]
