"""Where the files of a lake are: on this machine's disk, or as objects in a bucket.

Both have the interface of `pathlib.Path`. A local file is a `Path` as before. An `ObjectPath` is an object: its text is
its address (`s3://bucket/key`), the methods that read, list and remove call the store, and a function that needs a real
file raises TypeError. Arrow opens what `arrow_source` returns.

An object is written by one put (`put_file`, `write_object`) that is atomic, and durable when it returns. So
there is no rename and no fsync, and `is_durable` tells that a path needs none. Folders do not exist.

The settings of a bucket are registered once in each process (`register_bucket`). A pickled path carries them, so that a
task needs nothing else; it carries the name of a file with keys, never a key.

@ref engine#shared-lake
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path, PosixPath, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Self

from hypaware import extras
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.home import s3_keys

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SCHEME = "s3:"
ENVIRONMENT = "environment"
# Smaller objects are read at once: one request costs more than these bytes.
_WHOLE_BYTES = 4 << 20
_SINGLE_PUT_BYTES = 32 << 20
_PROBE = "_hypaware/create-only"
_NO_BUCKET = ("NoSuchBucket", "bucket does not exist")
_BAD_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "status code: 401", "status code: 403")
_NO_KEYS = ("169.254.169.254", "169.254.170.2", "MissingCredential")


@dataclass(frozen=True)
class BucketSettings:
    endpoint: str = ""
    region: str = ""
    path_style: bool = False
    credentials: str = ENVIRONMENT
    """`environment`, or the path of a file in the format of the AWS tools."""


_buckets: dict[str, BucketSettings] = {}
_stores: dict[tuple[int, str], ObjectStore] = {}


def register_bucket(bucket: str, settings: BucketSettings) -> None:
    if _buckets.get(bucket) != settings:
        _buckets[bucket] = settings
        _stores.pop((os.getpid(), bucket), None)


class ObjectPath(PosixPath):
    """An object of a bucket, or all objects whose keys start with its key."""

    def __str__(self) -> str:
        return f"{_SCHEME}//{'/'.join(self.parts[1:])}"

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is an object, not a file of this machine")

    def __reduce__(self) -> Any:
        return _restore, (str(self), _buckets.get(self.bucket))

    @property
    def bucket(self) -> str:
        return self.parts[1]

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])

    def resolve(self, strict: bool = False) -> Self:
        return self

    def absolute(self) -> Self:
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        with _store_errors(self) as client:
            found = client.head(_open_store(self.bucket), self.key)
        at = int(found["last_modified"].timestamp())
        return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, 0, 0, found["size"], at, at, at))

    def read_bytes(self) -> bytes:
        with _store_errors(self) as client:
            return bytes(client.get(_open_store(self.bucket), self.key).bytes())

    def open(self, mode: str = "r", *_args: Any, **_options: Any) -> IO[Any]:  # type: ignore[override]
        """Open the object for reading bytes."""
        if mode != "rb":
            raise ValueError(f"{self} can only be read as bytes")
        size = self.stat().st_size
        return io.BytesIO(self.read_bytes()) if size <= _WHOLE_BYTES else io.BufferedReader(ObjectReader(self, size))

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok:
            self.stat()
        try:
            with _store_errors(self) as client:
                client.delete(_open_store(self.bucket), self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def glob(self, pattern: str) -> Generator[Self, None, None]:
        depth = len(PurePosixPath(pattern).parts)
        for path in self.rglob("*"):
            names = path.parts[len(self.parts) :]
            if len(names) == depth and _matches(names, pattern):
                yield path

    def rglob(self, pattern: str) -> Generator[Self, None, None]:
        """Yield the objects below this prefix whose last name matches. They are listed in the order of their keys."""
        for path, _ in self.list_objects():
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    def list_objects(self) -> Iterator[tuple[Self, int]]:
        """Yield the objects below this prefix with their sizes."""
        with _store_errors(self) as client:
            for page in client.list(_open_store(self.bucket), f"{self.key}/"):
                for found in page:
                    yield type(self)(f"{_SCHEME}//{self.bucket}/{found['path']}"), found["size"]


class ObjectReader(io.RawIOBase):
    """Reads ranges of an object."""

    def __init__(self, path: ObjectPath, size: int) -> None:
        self._path, self._size, self._position = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._size, self._position + len(view))
        if end <= self._position:
            return 0
        with _store_errors(self._path) as client:
            store = _open_store(self._path.bucket)
            data = client.get_range(store, self._path.key, start=self._position, end=end)
        view[: len(data)] = memoryview(data)
        self._position += len(data)
        return len(data)


def parse_location(location: str) -> Path:
    """Convert an Iceberg location (`s3://…`, `file:/x`, `file:///x` or `/x`, never percent-encoded) to a path."""
    if location.startswith("s3://"):
        return ObjectPath(location)
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def format_location(path: Path) -> str:
    return str(path) if isinstance(path, ObjectPath) else f"file:{path}"


def list_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files below a folder with their sizes, without following links."""
    if isinstance(folder, ObjectPath):
        yield from folder.list_objects()
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_size


def is_durable(path: Path) -> bool:
    """Return whether the store made the file durable when it was written, so that no fsync is needed."""
    return isinstance(path, ObjectPath)


def arrow_source(path: Path) -> Any:
    """Return what Arrow can read: the path, or a file object for an object."""
    return path.open("rb") if isinstance(path, ObjectPath) else path


def open_whole(path: Path) -> IO[bytes]:
    """Open a file, or an object whose bytes are all read now: lines are read in blocks, too small for requests."""
    return io.BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else open(path, "rb")


def spool_object() -> IO[bytes]:
    """Return a temporary file without a name for the bytes of a new object (`put_file`), which may be large."""
    return tempfile.TemporaryFile()


def put_file(path: ObjectPath, file: IO[bytes]) -> None:
    """Create an object from a file, atomically. An object that exists is not replaced."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        with _store_errors(path) as client:
            store = _open_store(path.bucket)
            if size <= _SINGLE_PUT_BYTES:
                client.put(store, path.key, file.read(), mode="create", use_multipart=False)
            else:
                # A multipart upload has no condition. The names of such files are random.
                client.put(store, path.key, file)
    except FileExistsError:
        # The client repeats a put whose answer was lost, and then finds its own object.
        if path.stat().st_size != size:
            raise


def write_object(path: ObjectPath, data: bytes) -> None:
    """Write an object, atomically. It replaces one that exists."""
    with _store_errors(path) as client:
        client.put(_open_store(path.bucket), path.key, data, use_multipart=False)


def check_bucket(root: ObjectPath) -> None:
    """Raise NotReady unless the bucket exists, accepts the keys, and does not replace an object that it must create."""
    probe = root / _PROBE
    created = 0
    for _ in range(2):
        try:
            with _store_errors(probe) as client:
                client.put(_open_store(probe.bucket), probe.key, b"", mode="create", use_multipart=False)
            created += 1
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise _bucket_missing(root.bucket) from None
        except HypError:
            raise
        except OSError as error:
            raise Retryable(f"lake.warehouse: {error}", kind="warehouse_unavailable") from error
    # The second attempt always finds the object, unless the store ignores the condition.
    if created == 2:
        raise NotReady(
            f"{root} (lake.warehouse) replaces objects that must only be created: the store ignores If-None-Match. "
            "Use a store that supports conditional writes",
            kind="unsupported_store",
            repair="hyp config show lake",
        )


def _restore(location: str, settings: BucketSettings | None) -> ObjectPath:
    path = ObjectPath(location)
    if settings is not None:
        register_bucket(path.bucket, settings)
    return path


def _matches(names: tuple[str, ...], pattern: str) -> bool:
    return all(map(fnmatch.fnmatchcase, names, PurePosixPath(pattern).parts))


def _open_store(bucket: str) -> ObjectStore:
    """Return the client of a bucket. A forked process opens its own."""
    key = (os.getpid(), bucket)
    if key not in _stores:
        _stores[key] = _connect(bucket, _buckets.get(bucket, BucketSettings()))
    return _stores[key]


def _connect(bucket: str, settings: BucketSettings) -> ObjectStore:
    from obstore.store import S3Store

    if settings.credentials == ENVIRONMENT:
        keys = s3_keys.find_profile_keys()
    else:
        keys = s3_keys.read_keys_file(Path(settings.credentials).expanduser())
    provider: Any = (lambda: asdict(keys)) if keys else None
    config: dict[str, Any] = {"virtual_hosted_style_request": not settings.path_style}
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    return S3Store(
        bucket,
        region=s3_keys.find_region(settings.region),
        client_options={
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=120),
            # Only if configured: keys and rows are sent unencrypted.
            "allow_http": settings.endpoint.startswith("http://"),
        },
        retry_config={
            "max_retries": 4,
            "retry_timeout": timedelta(seconds=30),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
        },
        credential_provider=provider,
        config=config,  # type: ignore[arg-type]
    )


@contextmanager
def _store_errors(path: ObjectPath) -> Iterator[Any]:
    """Yield obstore. Its errors become those of a file: FileNotFoundError, FileExistsError, or another OSError.

    A bucket that does not exist and keys that are not accepted are reported as NotReady, which the user must fix.
    """
    try:
        import obstore
        from obstore import exceptions
    except ModuleNotFoundError:
        extras.require("team")
        raise

    try:
        yield obstore
    except exceptions.AlreadyExistsError:
        raise FileExistsError(errno.EEXIST, "the object exists", str(path)) from None
    except FileNotFoundError as error:
        if any(each in str(error) for each in _NO_BUCKET):
            raise _bucket_missing(path.bucket) from None
        raise FileNotFoundError(errno.ENOENT, "no such object", str(path)) from None
    except exceptions.BaseError as error:
        text = str(error)
        if any(each in text for each in _NO_BUCKET):
            raise _bucket_missing(path.bucket) from None
        if any(each in text for each in (*_BAD_KEYS, *_NO_KEYS)):
            missing = any(each in text for each in _NO_KEYS)
            raise NotReady(
                f"the bucket {path.bucket} (lake.warehouse) "
                + ("needs credentials, and none were found" if missing else "does not accept the credentials")
                + " (lake.s3.credentials)",
                kind="no_credentials" if missing else "bad_credentials",
                repair="export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… && hyp engine stop",
            ) from None
        line = next(iter(text.strip().splitlines()), type(error).__name__)
        raise OSError(errno.EIO, f"the object store did not answer as expected ({line[:300]})", str(path)) from None


def _bucket_missing(bucket: str) -> NotReady:
    return NotReady(
        f"the bucket {bucket} (lake.warehouse) does not exist; create it first",
        kind="no_bucket",
        repair="hyp config show lake",
    )
