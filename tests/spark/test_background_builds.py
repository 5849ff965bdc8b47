"""Builds in the background: they leave room for queries, and end when their job is cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pyspark import cloudpickle

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake.build import BuildFailure, BuildResult
from hypaware.lake.spark_table import SparkLake
from hypaware.state.home_opener import open_home
from tests.support import gated_tasks
from tests.support.gated_tasks import GatedTask
from tests.support.processes import PATIENCE, eventually

pytestmark = pytest.mark.spark
CORES = 2


@pytest.fixture
def lake(engine_session: EngineSession, engine_home: Home) -> Iterator[SparkLake]:
    opened = open_home(engine_home)
    with closing(opened.store):
        yield SparkLake(engine_home, engine_session.spark, opened.identity, lambda: None)


@pytest.fixture
def tasks(lake: SparkLake, tmp_path: Path) -> Iterator[list[GatedTask]]:
    cloudpickle.register_pickle_by_value(gated_tasks)
    gated = [GatedTask(number, tmp_path) for number in range(3 * CORES)]
    yield gated
    for each in gated:
        each.open()
    cloudpickle.unregister_pickle_by_value(gated_tasks)


def running(tasks: list[GatedTask]) -> list[GatedTask]:
    return [each for each in tasks if each.is_running]


def test_a_query_takes_the_next_free_core_while_an_import_has_tasks_left(
    lake: SparkLake, tasks: list[GatedTask]
) -> None:
    building = lake.start(tasks)
    eventually(lambda: building.done() or len(running(tasks)) == CORES)
    with ThreadPoolExecutor(1) as other:
        query = other.submit(lambda: lake.spark.sparkContext.parallelize([7], 1).map(str).collect())
        eventually(lambda: query.done() or len(lake.spark.sparkContext.statusTracker().getActiveJobsIds()) == 2)
        running(tasks)[0].open()
        try:
            assert query.result(PATIENCE / 3) == ["7"]
        finally:
            closed = [each for each in tasks if not each.is_open]
            for each in closed:
                each.open()
    assert len(closed) == len(tasks) - 1
    built = building.result(PATIENCE)
    assert [each.reports for each in built if isinstance(each, BuildResult)] == [[each.number] for each in tasks]


def test_a_build_in_the_background_ends_when_its_job_is_cancelled(lake: SparkLake, tasks: list[GatedTask]) -> None:
    spark = lake.spark.sparkContext
    spark.setJobGroup("import", "import")
    try:
        building = lake.start(tasks)
        eventually(lambda: building.done() or len(running(tasks)) == CORES)
        spark.cancelJobGroup("import")
        assert all(isinstance(each, BuildFailure) for each in building.result(PATIENCE))
    finally:
        spark.setLocalProperty("spark.jobGroup.id", None)
    assert len(running(tasks)) == CORES, "the other tasks never started"
