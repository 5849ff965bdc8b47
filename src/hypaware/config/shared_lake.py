"""The lake that several machines share: its catalog and state in PostgreSQL, its files in a bucket.

Every reader of the catalog or the state asks `find_shared_lake` first. A config file without the word `lake` is not
parsed, and a file that has not changed is not read again, so this costs one `stat` if the lake is embedded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hypaware.config import parse_config, read_config_text
from hypaware.config.schema import LakeConfig, LakeS3Config
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.home.s3_keys import find_region
from hypaware.home.storage import ENVIRONMENT, BucketSettings, ObjectPath, register_bucket

LAKE_NAME = "hyp"
"""The name of the lease. A database holds one lake."""
_FileVersion = tuple[int, int, int] | None
_found: dict[Path, tuple[_FileVersion, SharedLake | None]] = {}


@dataclass(frozen=True)
class SharedLake:
    uri: str
    """The address of the database, without user and password: `postgresql://host:port/database?…`."""
    warehouse: str
    user: str | None = None
    password_env: str | None = None
    s3: LakeS3Config = field(default_factory=LakeS3Config)

    @property
    def password(self) -> str | None:
        """The password in the environment. None if the drivers must find it, for example in `~/.pgpass`."""
        if self.password_env is None:
            return os.environ.get("PGPASSWORD")
        if not (found := os.environ.get(self.password_env)):
            raise NotReady(
                f"lake.state.password_env names the environment variable {self.password_env}, which is not set",
                kind="no_credentials",
                repair=f"export {self.password_env}=… && hyp engine stop",
            )
        return found

    @property
    def jdbc_uri(self) -> str:
        return f"jdbc:{urlsplit(self.uri)._replace(scheme='postgresql').geturl()}"

    @property
    def address(self) -> str:
        """The address for messages."""
        return urlsplit(self.uri)._replace(query="").geturl()

    @property
    def keys_file(self) -> str | None:
        """The file with the keys of the bucket, or None if they are found as the AWS tools find them."""
        named = self.s3.credentials
        return None if named == ENVIRONMENT else str(Path(named).expanduser())

    @property
    def root(self) -> ObjectPath:
        return ObjectPath(self.warehouse)

    def register(self) -> None:
        """Make the bucket known to this process."""
        s3 = self.s3
        # Tasks on other machines get these, so they name what this machine found.
        credentials = self.keys_file or ENVIRONMENT
        region = find_region(s3.region)
        register_bucket(self.root.bucket, BucketSettings(s3.endpoint, region, s3.path_style, credentials))


def find_shared_lake(home: Home) -> SharedLake | None:
    """Return the shared lake of a home, or None if its lake is embedded. Raise if the settings cannot be used."""
    version: _FileVersion = None
    try:
        status = home.config.stat()
        version = status.st_ino, status.st_size, status.st_mtime_ns
    except FileNotFoundError:
        return None
    if (known := _found.get(home.root)) is not None and known[0] == version:
        return known[1]
    text = read_config_text(home.config)
    shared = None
    if text is not None and "lake" in text:
        shared = to_shared_lake(parse_config(text, home.config).lake)
        if shared is not None:
            shared.register()
    _found[home.root] = version, shared
    return shared


def to_shared_lake(lake: LakeConfig) -> SharedLake | None:
    require_supported(lake)
    if isinstance(lake.state, str) or isinstance(lake.catalog, str):
        return None
    state, catalog = lake.state, lake.catalog
    user = state.get("user") or catalog.get("user")
    password_env = state.get("password_env") or catalog.get("password_env")
    return SharedLake(state["uri"], lake.warehouse.rstrip("/"), user, password_env, lake.s3)


def require_supported(lake: LakeConfig) -> None:
    """Reject unsupported settings instead of ignoring them, so that rows are never stored in an unexpected place."""
    if unsupported := lake.find_unsupported():
        raise NotReady(
            f"{unsupported.key}: {unsupported.reason}; rows stay in the spool until this is fixed",
            kind="lake_elsewhere",
            repair=f"hyp config set {unsupported.key} '{unsupported.default}'",
        )
