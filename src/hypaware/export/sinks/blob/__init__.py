"""Deliver rows as files to a folder or an object store: one object per chunk, then the manifest that makes it count.

The configured destination is parsed into one canonical spelling, so that two spellings of a place compare equal:

| configured | canonical |
|---|---|
| `/data/x/`, `~/x`, `file:///data/x` | `file:///data/x` |
| `s3://bucket/prefix/`, `s3a://…` | `s3://bucket/prefix`, with `?endpoint=…` unless it is Amazon's |
| `gs://bucket/prefix` | the same |
| `az://container/prefix`, `abfs://container@account…/prefix` | `abfss://container@account.dfs.core…/prefix` |

A prefix is used literally: a `%20` in it is three characters. Uses no network and imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hypaware.errors import ConfigError
from hypaware.export.sink import Sink, SinkSettings, SinkType

_AZURE = ("az", "azure", "abfs", "abfss")
_SCHEMES = ("file", "s3", "s3a", "gs", *_AZURE)
# In order of precedence. They select S3-compatible stores of other vendors.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_AZURE_HOST = ".dfs.core.windows.net"
_ONLY_S3 = ("endpoint", "region", "access_key_env", "secret_key_env")


@dataclass(frozen=True)
class FolderLocation:
    path: Path

    @property
    def address(self) -> str:
        return f"file://{self.path}"


@dataclass(frozen=True)
class BucketLocation:
    scheme: str
    """`s3`, `gs` or `abfss`."""
    bucket: str
    prefix: str
    """Without a slash at either end; may be empty."""
    endpoint: str = ""
    account: str = ""

    @property
    def address(self) -> str:
        host = f"{self.bucket}@{self.account}{_AZURE_HOST}" if self.account else self.bucket
        path = f"/{self.prefix}" if self.prefix else ""
        return f"{self.scheme}://{host}{path}" + (f"?endpoint={self.endpoint}" if self.endpoint else "")


def parse_location(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> FolderLocation | BucketLocation:
    """Parse the option `destination`. Raises ConfigError if it is not valid."""
    written = str(options["destination"]).strip()
    scheme, separator, rest = written.partition("://")
    scheme = scheme.lower()
    if separator and scheme not in _SCHEMES:
        raise ConfigError(f"destination {written}: unknown scheme {scheme}://; use a folder, s3://, gs:// or az://")
    for name in _ONLY_S3 if scheme not in ("s3", "s3a") else ():
        if options.get(name):
            raise ConfigError(f"{name} is only valid for s3:// destinations, not for {written}")
    if not separator or scheme == "file":
        return FolderLocation(_folder_path(written, rest if separator else None))
    if any(char in rest for char in "?#\\") or any(ord(char) < 32 for char in rest):
        raise ConfigError(f"destination {written}: a query, a fragment or a control character is not allowed")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise ConfigError(f"destination {written}: the bucket is missing")
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise ConfigError(f"destination {written}: '.' and '..' are not allowed in an object store")
    prefix = "/".join(parts)
    if scheme in _AZURE:
        container, at, server = bucket.partition("@")
        account = server.partition(".")[0] if at else next(filter(None, map(environment.get, _ACCOUNTS)), "")
        if not container or not account:
            raise ConfigError(
                f"destination {written}: the storage account is missing; write "
                f"abfss://CONTAINER@ACCOUNT{_AZURE_HOST}/PREFIX or set {_ACCOUNTS[0]}"
            )
        return BucketLocation("abfss", container, prefix, account=account)
    if "@" in bucket or ":" in bucket:
        raise ConfigError(f"destination {written}: {bucket!r} is not a bucket name; set the server with endpoint")
    if scheme == "gs":
        return BucketLocation("gs", bucket, prefix)
    chosen = options.get("endpoint") or next(filter(None, map(environment.get, _ENDPOINTS)), "")
    return BucketLocation("s3", bucket, prefix, endpoint=_normalise_endpoint(str(chosen)))


def _folder_path(written: str, after_scheme: str | None) -> Path:
    path = written
    if after_scheme is not None:
        host, slash, path = after_scheme.partition("/")
        if host not in ("", "localhost"):
            raise ConfigError(f"destination {written}: a file:// address has no host; write file:///path")
        path = unquote(slash + path)
    if path.startswith("~"):
        path = str(Path(path).expanduser())
    if not path.startswith("/") or "\0" in path:
        raise ConfigError(
            f"destination {written}: write the absolute path of the folder, starting with / or ~; "
            "the daemon runs in another working directory"
        )
    return Path("/" + os.path.normpath(path).lstrip("/"))


def _normalise_endpoint(written: str) -> str:
    if not written:
        return ""
    parts = urlsplit(written)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError("endpoint: must be an http or https URL without a user name, query or fragment")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.blob.blob_sink import BlobSink

    return BlobSink.from_settings(settings)


BLOB = SinkType(
    "blob", "files in a folder or an object store", lambda settings: parse_location(settings.options).address, _make
)
