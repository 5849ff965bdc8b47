"""A lake whose catalog is in PostgreSQL: the JVM that lost its lease cannot commit, with Spark's own commits."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from urllib.parse import quote

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.home import Home
from hypaware.iceberg.catalog import epoch_options
from hypaware.state import lake_lease
from tests.support.postgres_server import PASSWORD, USER, PostgresServer
from tests.support.processes import eventually, running

_OWNER = """
import sys
from hypaware.engine.shared_session import JdbcSession
from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.state import lake_lease

uri, user, password = sys.argv[1:]
home = Home.from_environment()
catalog = "spark.sql.catalog.hyp"
login = {f"{catalog}.jdbc.user": user, f"{catalog}.jdbc.password": password}
session = open_session(home, master="local[1]", memory="512m", extra=login)
lease = JdbcSession(session.jvm, uri, {"user": user, "password": password})
lake_lease.install_fence(lease.run)
epoch = lake_lease.try_acquire(lease.run, "lake", "first", 3600.0)
session.spark.conf.set(f"{catalog}.uri", lake_lease.fenced_jdbc_uri(uri, epoch))
session.spark.sql("CREATE NAMESPACE hyp.hypaware")
lake_lease.guard_catalog(lease.run, "lake", "hyp")
session.spark.sql("CREATE TABLE hyp.hypaware.messages (a BIGINT) USING iceberg")
session.spark.sql("INSERT INTO hyp.hypaware.messages VALUES (1)")
print(epoch, session.jvm_pid, flush=True)
sys.stdin.readline()
try:
    session.spark.sql("INSERT INTO hyp.hypaware.messages VALUES (2)")
    print("committed", flush=True)
except Exception as error:
    print("lost" if "holds the lease" in str(error) else repr(error), flush=True)
session.process.kill()
"""


@pytest.mark.hazard(115)
def test_a_jvm_that_was_stopped_for_longer_than_its_lease_cannot_commit(postgres: PostgresServer, home: Home) -> None:
    address = f"127.0.0.1:{postgres.port}/postgres"
    with running(_OWNER, home, f"jdbc:postgresql://{address}", USER, PASSWORD) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        epoch, jvm = map(int, owner.stdout.readline().split())
        try:
            os.kill(jvm, signal.SIGSTOP)
            owner.send_signal(signal.SIGSTOP)
            _append_as_new_owner(postgres, address, epoch + 1)
            os.kill(jvm, signal.SIGCONT)
            owner.send_signal(signal.SIGCONT)
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "lost\n"
        finally:
            with suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
    with SqlCatalog("hyp", uri=postgres.whole_uri) as catalog:
        assert catalog.load_table("hypaware.messages").scan().to_arrow()["a"].to_pylist() == [1, 1]


def _append_as_new_owner(postgres: PostgresServer, address: str, epoch: int) -> None:
    with closing(psycopg.connect(f"postgresql://{address}", user=USER, password=PASSWORD, autocommit=True)) as session:

        def run(sql: str) -> list[tuple[int]]:
            cursor = session.execute(sql)
            return cursor.fetchall() if cursor.description else []

        eventually(lambda: lake_lease.try_acquire(run, "lake", "second", 0.2) == epoch)
        uri = f"{postgres.whole_uri}?options={quote(epoch_options(epoch))}"
        with SqlCatalog("hyp", uri=uri) as catalog:
            table = catalog.load_table("hypaware.messages")
            table.append(table.scan().to_arrow())
