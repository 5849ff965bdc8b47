"""A shared lake on loopback: a PostgreSQL server and an S3 server, and the homes of machines that use them.

Starting the servers takes seconds, so tests share them. Each test has a lake of its own: a database and a prefix.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hypaware.engine import class_archive, jars
from hypaware.home import cache_dir
from tests.support.command import Hyp
from tests.support.postgres_server import PASSWORD, USER, PostgresServer, postgres_server
from tests.support.s3_server import S3Server

BUCKET = "lakehouse"
PASSWORD_ENV = "TEST_STATE_PASSWORD"
ENVIRONMENT = {
    PASSWORD_ENV: PASSWORD,
    "AWS_ACCESS_KEY_ID": S3Server.access_key,
    "AWS_SECRET_ACCESS_KEY": S3Server.secret_key,
}
_numbers = itertools.count()


@dataclass
class SharedLakeServers:
    postgres: PostgresServer
    s3: S3Server
    folder: Path
    database: str = "postgres"

    @property
    def address(self) -> str:
        return f"postgresql://127.0.0.1:{self.postgres.port}/{self.database}"

    @property
    def whole_uri(self) -> str:
        """Return the address with user and password, in SQLAlchemy's form."""
        return self.postgres.whole_uri_of(self.database)

    @property
    def warehouse(self) -> str:
        return f"s3://{BUCKET}/{self.database}/lake"

    def execute(self, sql: str) -> None:
        self.postgres.execute(sql, self.database)

    def config(self, **replaced: str) -> str:
        """Return the text of a config file, with some values replaced."""
        values = {
            "address": self.address,
            "warehouse": self.warehouse,
            "endpoint": self.s3.endpoint,
            "credentials": "environment",
            "password_env": PASSWORD_ENV,
            **replaced,
        }
        login = f'user = "{USER}", password_env = "{values["password_env"]}"'
        return (
            "[engine]\n"
            'master = "local[2]"\n'
            'memory = "512m"\n'
            "[lake]\n"
            f'catalog = {{ type = "jdbc", uri = "{values["address"]}", {login} }}\n'
            f'state = {{ uri = "{values["address"]}", {login} }}\n'
            f'warehouse = "{values["warehouse"]}"\n'
            "[lake.s3]\n"
            f'endpoint = "{values["endpoint"]}"\n'
            'region = "us-east-1"\n'
            "path_style = true\n"
            f'credentials = "{values["credentials"]}"\n'
        )

    def machine(self, name: str, **replaced: str) -> Hyp:
        """Return the home of a machine that uses the lake."""
        home = self.folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.toml").write_text(self.config(**replaced), encoding="utf-8")
        return Hyp(home)


@contextmanager
def shared_lake_servers(folder: Path) -> Iterator[SharedLakeServers]:
    """Start servers for one lake, whose machines are in the folder."""
    with start_lake_servers(folder) as started, new_lake(started, folder) as found:
        yield found


@contextmanager
def start_lake_servers(folder: Path) -> Iterator[SharedLakeServers]:
    """Start servers for many lakes. Processes find their secrets in the environment only within `new_lake`."""
    jars.install_jars(cache_dir(), lambda *_: None)
    jars.install_jars(cache_dir(), lambda *_: None, jars=jars.shared_jars())
    class_archive.ensure_archive(cache_dir(), lambda *_: None)
    (folder / "s3").mkdir()
    with postgres_server() as postgres, S3Server(folder / "s3") as s3:
        s3.make_bucket(BUCKET)
        yield SharedLakeServers(postgres, s3, folder)


@contextmanager
def new_lake(servers: SharedLakeServers, folder: Path) -> Iterator[SharedLakeServers]:
    """Yield the servers with a new lake, whose machines are in the folder, and with the secrets in the environment."""
    database = f"lake_{next(_numbers)}"
    servers.postgres.execute(f"CREATE DATABASE {database}")
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield replace(servers, folder=folder, database=database)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
