"""The Spark session of jobs: its files, its sockets and its catalog."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import AnalysisException

from hypaware.engine import class_archive, jars, jvm
from hypaware.engine.session import EngineSession, open_session
from hypaware.home import Home, cache_dir
from tests.support import processes
from tests.support.unprivileged import run_as_other_user

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(engine_session: EngineSession) -> str:
    """Create a table of the lake with five rows."""
    engine_session.spark.sql("CREATE NAMESPACE IF NOT EXISTS hyp.session_tests")
    engine_session.spark.sql(
        "CREATE TABLE hyp.session_tests.rows (seq bigint, source string) USING iceberg PARTITIONED BY (source)"
    )
    engine_session.spark.sql("INSERT INTO hyp.session_tests.rows SELECT id, 'claude' FROM range(5)")
    return "session_tests.rows"


def test_pyiceberg_reads_the_tables_of_spark(engine_session: EngineSession, engine_home: Home, table: str) -> None:
    catalog = SqlCatalog("hyp", uri=f"sqlite:///{engine_home.catalog}")

    assert sorted(catalog.load_table(table).scan().to_arrow().column("seq").to_pylist()) == [0, 1, 2, 3, 4]
    catalog.close()


def test_the_catalog_is_durable_and_waits_for_other_writers(engine_session: EngineSession) -> None:
    uri = engine_session.spark.conf.get("spark.sql.catalog.hyp.uri")
    connection = engine_session.jvm.java.sql.DriverManager.getConnection(uri)
    answers = []
    for pragma in ("journal_mode", "synchronous", "busy_timeout"):
        found = connection.createStatement().executeQuery(f"PRAGMA {pragma}")
        found.next()
        answers.append(found.getString(1))
    connection.close()

    assert answers == ["wal", "2", "10000"]


@pytest.mark.hazard(75)
def test_a_commit_of_another_process_is_visible_immediately(engine_session: EngineSession, engine_home: Home) -> None:
    spark, count = engine_session.spark, "SELECT count(*) FROM hyp.session_tests.shared"
    spark.sql("CREATE TABLE hyp.session_tests.shared USING iceberg AS SELECT id FROM range(5)")
    assert spark.sql(count).first()[0] == 5
    catalog = SqlCatalog("hyp", uri=f"sqlite:///{engine_home.catalog}")
    shared = catalog.load_table("session_tests.shared")
    shared.append(shared.scan().to_arrow())
    catalog.close()

    assert spark.sql(count).first()[0] == 10


def test_spark_writes_private_files_below_the_home(
    engine_session: EngineSession, engine_home: Home, table: str
) -> None:
    properties = engine_session.jvm.java.lang.System.getProperty
    for folder in (properties("user.dir"), properties("java.io.tmpdir")):
        assert Path(folder).is_relative_to(engine_home.engine / "tmp")
    of_the_table = list((engine_home.warehouse / "session_tests" / "rows").rglob("*"))
    assert {".parquet", ".avro", ".json"} <= {path.suffix for path in of_the_table}
    written = [*of_the_table, engine_home.catalog, *engine_home.engine.rglob("*")]
    assert [path for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_no_checksum_files_are_written(engine_session: EngineSession, engine_home: Home, table: str) -> None:
    names = [path.name for path in (engine_home.warehouse / "session_tests" / "rows").rglob("*")]

    assert names
    assert [name for name in names if name.endswith(".crc")] == []


def test_the_jvm_listens_only_on_loopback(engine_session: EngineSession) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(engine_session.jvm_pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert set(listening) == {"127.0.0.1"}


_FETCH_BLOCK = """
def text(value):
    return struct.pack(">i", len(value)) + value.encode()

def fetch(port, block):
    # Spark's transfer protocol: an RpcRequest with OpenBlocks, then a ChunkFetchRequest for the stream that it opened.
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, sock.makefile("rb") as answers:
        def answer():
            (size,) = struct.unpack(">q", answers.read(8))
            return answers.read(size - 8)
        body = b"\\x00" + text("app") + text("0") + struct.pack(">i", 1) + text(block)
        sock.sendall(struct.pack(">qbqi", 21 + len(body), 3, 1, len(body)) + body)
        opened = answer()
        if opened[0] != 4:
            return opened
        stream, _ = struct.unpack(">qi", opened[-12:])
        sock.sendall(struct.pack(">qbqi", 21, 0, stream, 0))
        return answer()

for port in sys.argv[2:]:
    print(fetch(int(port), sys.argv[1]))
"""
_CALL_JAVA = """
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as sock, sock.makefile("rb") as answers:
    sock.sendall(b"c\\nz:java.lang.System\\ngetenv\\ne\\n")
    print(answers.readline())
"""


@pytest.mark.hazard(108)
def test_another_user_cannot_read_rows_from_the_ports_of_spark(
    engine_session: EngineSession, engine_home: Home
) -> None:
    word = "PrivateWord"
    engine_session.spark.range(1).selectExpr(f"concat('{word}', id)").repartition(1).collect()
    (block,) = [
        path.with_suffix("").name
        for path in engine_home.engine.rglob("shuffle_*.data")
        if word.encode() in path.read_bytes()
    ]
    driver = engine_session.jvm.org.apache.spark.SparkEnv.get()
    transfers, messages = driver.blockManager().blockManagerId().port(), driver.rpcEnv().address().port()

    answers = run_as_other_user(_FETCH_BLOCK, block, str(transfers), str(messages))

    assert word not in answers
    assert answers.count("Expected SaslMessage, received something else") == 2, answers


@pytest.mark.hazard(108)
def test_another_user_cannot_call_the_jvm(engine_session: EngineSession) -> None:
    port = engine_session.spark.sparkContext._gateway.gateway_parameters.port

    assert "Authentication error" in run_as_other_user(_CALL_JAVA, str(port))


@pytest.mark.hazard(108)
def test_the_secret_of_spark_is_only_in_the_memory_of_the_jvm(engine_session: EngineSession) -> None:
    secret = engine_session.jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    jvm_process = psutil.Process(engine_session.jvm_pid)

    assert len(secret) >= 32
    assert secret not in str(engine_session.spark.sparkContext.getConf().getAll())
    for process in (jvm_process, *jvm_process.children(recursive=True)):
        assert secret not in str(process.cmdline())
        assert secret not in str(process.environ())


def test_ctrl_c_does_not_reach_the_jvm(engine_session: EngineSession) -> None:
    assert os.getsid(engine_session.jvm_pid) == engine_session.jvm_pid != os.getsid(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_jvm_has_the_module_options_of_this_spark(engine_session: EngineSession) -> None:
    options = engine_session.jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()

    assert [option for option in options if option != "--add-modules=jdk.incubator.vector"] == list(jvm.MODULE_OPTIONS)


def test_the_class_archive_is_used(engine_session: EngineSession) -> None:
    class_path = jvm.build_class_path(jars.find_installed_jars(cache_dir()))
    expected = class_archive.locate_archive(cache_dir(), jvm.find_java(), class_path)

    mapped = {mapping.path for mapping in psutil.Process(engine_session.jvm_pid).memory_maps()}

    assert str(expected) in mapped


def test_files_cannot_be_queried_as_tables(engine_session: EngineSession, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"a": 1}\n')

    with pytest.raises(AnalysisException):
        engine_session.spark.sql(f"SELECT * FROM json.`{tmp_path}/secret.json`").collect()


def test_times_are_utc_in_any_local_time_zone(engine_session: EngineSession) -> None:
    found = engine_session.spark.sql("SELECT current_timezone(), cast(timestamp_seconds(0) AS string)").first()

    assert tuple(found) == ("UTC", "1970-01-01 00:00:00")
    assert engine_session.jvm.java.util.TimeZone.getDefault().getID() == "UTC"


def test_workers_run_this_python_with_modules_preloaded(engine_session: EngineSession) -> None:
    def look(_: object) -> tuple[str, bool]:
        import sys

        return sys.executable, {"pyarrow", "orjson", "hypaware.lake.build"} <= sys.modules.keys()

    context = engine_session.spark.sparkContext

    assert context.parallelize([1, 2], 2).map(look).collect() == [(sys.executable, True)] * 2


def test_a_process_has_one_session(engine_session: EngineSession, home: Home) -> None:
    with pytest.raises(RuntimeError, match="already"):
        open_session(home)

    assert engine_session.spark.range(3).count() == 3
    assert not home.root.exists()


_TWICE = """
import os, sys
from pathlib import Path
from hypaware.home import Home
from hypaware.engine.session import open_session


home = Home.from_environment()
for _ in range(2):
    session = open_session(home, master="local[1]", memory="512m", extra={"spark.sql.shuffle.partitions": "7"})
    session.spark.sql("CREATE NAMESPACE IF NOT EXISTS hyp.n")
    assert session.spark.conf.get("spark.sql.shuffle.partitions") == "7"
    print(session.jvm_pid, session.spark.range(3).count())
    session.close()
    session.close()
print(os.listdir("."), os.listdir(home.engine / "tmp"))
"""


def test_sessions_can_follow_each_other_and_leave_no_files(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a separate folder, a locale without umlauts, and a home with an umlaut in its path."""
    odd = Home(home.root.with_name("ü & %41"))
    empty = tmp_path / "cwd"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere")

    done = processes.run(_TWICE, odd)

    first, second, folders = done.stdout.splitlines()
    assert first.split()[1] == second.split()[1] == "3"
    assert first.split()[0] != second.split()[0], "each session has its own JVM"
    assert folders == "[] []"
    assert (done.returncode, done.stderr) == (0, "")
    assert odd.catalog.exists()
