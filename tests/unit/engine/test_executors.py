"""What the executors of a cluster run, and how a machine that cannot is named. Without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hypaware.config.schema import LakeS3Config
from hypaware.config.shared_lake import SharedLake
from hypaware.engine import executors
from hypaware.engine.package_archive import ensure_package_archive
from hypaware.engine.session import is_local, read_spark_defaults
from hypaware.engine.shared_session import shared_executor_settings
from hypaware.engine.worker_daemon import EXPECTED, describe_versions


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_the_archive_has_hypaware_and_all_that_tasks_import_but_not_spark(cache: Path, tmp_path: Path) -> None:
    archive = ensure_package_archive(cache)
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    assert not (tmp_path / "pyspark").exists()
    # Without site-packages: what is imported comes from the archive.
    asked = "import hypaware, pyarrow, orjson, obstore, hypaware.lake.build"
    asked += "; print(hypaware.__file__, hypaware.__version__)"
    asked += "; from hypaware import plugins; print(len(plugins.list_plugins()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    python = getattr(sys, "_base_executable", sys.executable)
    found = subprocess.run([python, "-S", "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path))
    assert describe_versions().startswith(f"hypaware {found.stdout.split()[1]},")


def test_the_archive_is_built_once(cache: Path) -> None:
    first = ensure_package_archive(cache)
    built = first.stat().st_ino
    again = ensure_package_archive(cache)
    assert (again, again.stat().st_ino) == (first, built)
    assert list((cache / "executors").iterdir()) == [first]


def test_an_installed_python_is_used_unchanged_and_nothing_is_sent(cache: Path) -> None:
    given = {"spark.pyspark.python": "/opt/hypaware/bin/python", "spark.archives": "env.tar.gz#env"}
    settings = executors.executor_settings(cache, given)
    assert settings == {f"spark.executorEnv.{EXPECTED}": describe_versions()}


def test_archives_of_the_user_are_sent_next_to_that_of_hypaware(cache: Path) -> None:
    settings = executors.executor_settings(cache, {"spark.archives": "data.zip#data"})
    ours, theirs = settings["spark.archives"].split(",")
    assert (ours.partition("#")[2], theirs) == ("hypaware-packages", "data.zip#data")
    assert settings["spark.pyspark.python"] == f"python3.{sys.version_info.minor}"


def test_an_executor_gets_the_name_of_the_file_with_the_keys_of_a_bucket() -> None:
    named = SharedLake("postgresql://db/lake", "s3://bucket/lake", s3=LakeS3Config(credentials="~/keys"))
    assert shared_executor_settings(named) == {
        "spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE": str(Path("~/keys").expanduser())
    }
    found_by_each_machine = replace(named, s3=LakeS3Config())
    assert shared_executor_settings(found_by_each_machine) == {}


def test_an_executor_with_another_version_of_hypaware_ends_with_both_versions() -> None:
    environment = {**os.environ, EXPECTED: "hypaware 99.0, Python 3.99"}
    command = [sys.executable, "-m", "hypaware.engine.worker_daemon"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert f"this executor has {describe_versions()}, but the driver has hypaware 99.0, Python 3.99" in ended.stderr


def test_a_machine_without_python_or_hypaware_is_named() -> None:
    lost = "Job aborted: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "
    java = executors._explain(f'{lost}java.io.IOException: Cannot run program "python3.11": error=2\n\tat a.b(C.java)')
    assert 'executor on 10.0.0.7 cannot run tasks: java.io.IOException: Cannot run program "python3.11"' in java.message
    said = "  Traceback (most recent call last):\n  ModuleNotFoundError: No module named 'hypaware'"
    python = executors._explain(f"{lost}SparkException: \nError from python worker:\n{said}\nPYTHONPATH was:\n  x\nEOF")
    assert "executor on 10.0.0.7 cannot run tasks: ModuleNotFoundError: No module named 'hypaware'" in python.message


@pytest.mark.hazard(116)
def test_a_machine_that_does_not_share_a_folder_of_the_lake_is_named(tmp_path: Path) -> None:
    for name in ("shared", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared" / ".probe").write_text(".probe")
    found = executors.probe_executor(1, [tmp_path / "shared" / ".probe", tmp_path / "other" / ".probe"])
    assert found.unseen == (str(tmp_path / "other"),)
    assert [path.parent for path in found.written] == [tmp_path / "shared"]
    message = executors._not_shared(found, found.unseen).message
    assert found.machine in message
    assert str(tmp_path / "other") in message


def test_defaults_of_the_cluster_are_read_except_those_that_hypaware_sets_itself(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.executor.cores   2\nspark.eventLog.dir=hdfs:///logs\nspark.master spark://elsewhere:7077\n"
        "spark.sql.session.timeZone Europe/Berlin\nspark.local.dir: /scratch one\n\n"
    )
    assert read_spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.executor.cores": "2",
        "spark.eventLog.dir": "hdfs:///logs",
        "spark.local.dir": "/scratch one",
    }
    assert read_spark_defaults({}) == {}
    assert read_spark_defaults({"SPARK_CONF_DIR": str(tmp_path / "missing")}) == {}


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local[2]", True), ("local-cluster[2,1,512]", False), ("yarn", False)],
)
def test_only_masters_without_executors_are_local(master: str, local: bool) -> None:
    assert is_local(master) == local
