"""A lake that machines share: catalog and state in PostgreSQL, data files in S3. Real servers, real `hyp` processes.

Two homes on this machine stand for two machines. They share nothing but the two servers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.engine import jars
from hypaware.home import cache_dir
from tests.support.command import Hyp
from tests.support.postgres_server import PASSWORD, USER
from tests.support.processes import eventually
from tests.support.rows import DATASET, rows
from tests.support.s3_server import S3Server
from tests.support.shared_lake import ENVIRONMENT, SharedLakeServers

FOUNDATION = (
    "lake.build.after-write",
    "lake.commit.before-commit",
    "lake.commit.after-commit",
    "lake.record.after-commit",
)
_COUNT = f"SELECT count(*) AS n, count(DISTINCT message_id) AS ids FROM {DATASET}"
_PLAIN_SPARK = """
import sys
from pyspark.sql import SparkSession
jars, address, user, password, warehouse, endpoint = sys.argv[1:]
catalog = "spark.sql.catalog.hyp"
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars).config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog").config(f"{catalog}.type", "jdbc")
    .config(f"{catalog}.uri", f"jdbc:{address}").config(f"{catalog}.jdbc.user", user)
    .config(f"{catalog}.jdbc.password", password).config(f"{catalog}.jdbc.schema-version", "V1")
    .config(f"{catalog}.warehouse", warehouse).config(f"{catalog}.io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
    .config(f"{catalog}.s3.endpoint", endpoint).config(f"{catalog}.s3.path-style-access", "true")
    .config(f"{catalog}.client.region", "us-east-1")
    .getOrCreate()
)
print(spark.table("hyp.hypaware.ai_gateway_messages").count())
try:
    spark.sql("DELETE FROM hyp.hypaware.ai_gateway_messages")
    print("deleted")
except Exception as error:
    print("refused" if "holds the lease" in str(error) else repr(error))
"""


@contextmanager
def machine(servers: SharedLakeServers, name: str) -> Iterator[Hyp]:
    """Yield the home of a machine. Its engine is stopped at the end, which releases the lease."""
    hyp = servers.machine(name)
    try:
        yield hyp
    finally:
        hyp.run("engine", "stop")


def test_rows_go_the_whole_way_and_other_programs_read_them(servers: SharedLakeServers, tmp_path: Path) -> None:
    with machine(servers, "first") as hyp:
        sink = f'{{ kind = "blob", destination = "{tmp_path / "out"}", encoder = "jsonl" }}'
        hyp.ok("config", "set", "sinks.archive", sink)
        hyp.ingest(rows(20))
        hyp.ok("flush")
        hyp.ingest(rows(20, start=10))
        assert hyp.query(_COUNT, refresh="always") == [{"n": 30, "ids": 30}]
        hyp.ok("export")
        (exported,) = (path for path in (tmp_path / "out").rglob("*.jsonl*") if "manifest" not in path.name)
        assert exported.stat().st_size > 0
        assert hyp.ok("maintain", "--force")["datasets"][0]["files_after"] == 1
        assert hyp.ok("verify", "--deep")["ok"] is True
        assert hyp.ok("sessions")["sessions"][0]["messages"] == 30
        assert not list((hyp.home / "lake").rglob("*.parquet")), "no data file is on this machine"
        assert _maps_class_archive(int((hyp.home / "run" / "engine.pid").read_text()))
        refused = hyp.run("maintain", DATASET, "--rebuild", "--json")
        assert (refused.code, refused.json["error"]["kind"]) == (3, "shared_lake_unsupported"), refused
        _require_no_secret(hyp)
    _require_other_readers(servers)


def _maps_class_archive(engine: int) -> bool:
    (jvm,) = [child for child in psutil.Process(engine).children() if child.name() == "java"]
    return any(mapping.path.endswith(".jsa") for mapping in jvm.memory_maps())


def _require_no_secret(hyp: Hyp) -> None:
    """No file of the home and no argument of a process contains a password or a key."""
    secrets = [value.encode() for name, value in ENVIRONMENT.items() if name != "AWS_ACCESS_KEY_ID"]
    for path in hyp.home.rglob("*"):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in secrets), path
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes()
        except OSError:
            continue
        if os.fsencode(hyp.home) in arguments:
            assert not any(secret in arguments for secret in secrets)


def _require_other_readers(servers: SharedLakeServers) -> None:
    settings = {
        "s3.endpoint": servers.s3.endpoint,
        "s3.access-key-id": S3Server.access_key,
        "s3.secret-access-key": S3Server.secret_key,
        "s3.region": "us-east-1",
    }
    with SqlCatalog("hyp", uri=servers.whole_uri, **settings) as catalog:
        table = catalog.load_table(f"hypaware.{DATASET}")
        assert len(table.scan().to_arrow()) == 30
    paths = (*jars.find_installed_jars(cache_dir()), *jars.find_installed_jars(cache_dir(), jars.shared_jars()))
    login = [servers.address, USER, PASSWORD, servers.warehouse, servers.s3.endpoint]
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN_SPARK, ",".join(map(str, paths)), *login],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["30", "refused"], f"{done.stdout}{done.stderr[-3000:]}"


def test_a_row_is_stored_once_if_one_machine_is_killed_and_another_takes_over(servers: SharedLakeServers) -> None:
    """Each flush first recovers that of the other machine, which was killed, and is then killed one step later."""
    with machine(servers, "first") as first:
        second = servers.machine("second")
        killed = [replace(each, inline=True) for each in (first, second)]
        for place, point in enumerate(FOUNDATION):
            # Five of the rows were sent to both machines.
            killed[place % 2].ingest(rows(10, start=5 * place))
            assert killed[place % 2].run("flush", HYP_CRASH_AT=point).code == -signal.SIGKILL, point
        killed[1].ok("flush")
        first.ok("flush")
        assert first.query(_COUNT) == [{"n": 25, "ids": 25}]
        assert first.ok("verify", "--deep")["ok"] is True
        for each in (first, second):
            assert not list((each.home / "spool" / DATASET / "sealed").iterdir())


@pytest.mark.hazard(115)
def test_a_machine_that_was_stopped_for_longer_than_its_lease_loses_nothing_and_doubles_nothing(
    servers: SharedLakeServers,
) -> None:
    with machine(servers, "first") as first, machine(servers, "second") as second:
        first.ingest(rows(10))
        first.ok("flush")
        engine = int((first.home / "run" / "engine.pid").read_text())
        stopped = [engine, *map(int, Path(f"/proc/{engine}/task/{engine}/children").read_text().split())]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        # The time that the lease lasts has passed, by the clock of the server.
        servers.execute("UPDATE hypaware.lake_leases SET renewed_at = renewed_at - interval '1 minute'")
        try:
            first.ingest(rows(10, start=10))
            waiting = first.start("flush")
            second.ingest(rows(10, start=20))
            second.ok("flush")
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        waiting.communicate()
        second.run("engine", "stop")
        eventually(lambda: first.run("flush").code == 0)
        assert first.query(_COUNT) == [{"n": 30, "ids": 30}]
        assert first.ok("verify", "--deep")["ok"] is True


def test_each_wrong_setting_is_named_and_the_rows_stay_in_the_spool(servers: SharedLakeServers, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = else\n")
    with machine(servers, "first") as hyp:
        hyp.ingest(rows(10))
        for replaced, kind, named in (
            ({"warehouse": "s3://missing-bucket/x"}, "no_bucket", "lake.warehouse"),
            ({"credentials": str(keys)}, "bad_credentials", "lake.s3.credentials"),
            ({"password_env": "NO_SUCH_VARIABLE"}, "no_credentials", "NO_SUCH_VARIABLE"),
            ({"address": "postgresql://127.0.0.1:1/postgres"}, "state_unavailable", "lake.state"),
        ):
            servers.machine("first", **replaced)
            hyp.run("engine", "stop")
            answer = hyp.run("flush", "--json")
            assert answer.code != 0
            assert answer.json["error"]["kind"] == kind, answer
            assert named in answer.json["error"]["message"]
        servers.machine("first")
        hyp.run("engine", "stop")
        assert hyp.ok("flush")["datasets"][0]["rows_written"] == 10
