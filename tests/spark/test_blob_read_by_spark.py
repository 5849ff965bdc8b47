"""Spark reads the output of a blob sink like any folder of Parquet files or JSON lines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hypaware.engine.session import EngineSession
from hypaware.export.encoders import JSONL, PARQUET, Encoder
from tests.support.blob_destination import GATEWAY, chunk, opened, payload

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("encoder", [PARQUET, JSONL], ids=lambda encoder: encoder.name)
def test_spark_reads_the_objects_without_the_manifests(
    engine_session: EngineSession, tmp_path: Path, encoder: Encoder
) -> None:
    root = tmp_path / "archive"

    async def work() -> None:
        sink = await opened(root, encoder)
        await sink.ship(chunk(0, 10), payload(7), 0)
        await sink.ship(chunk(0, 10, source="code x"), payload(5, 7), 0)

    asyncio.run(work())

    read = engine_session.spark.read
    rows = read.parquet(str(root / "*")) if encoder is PARQUET else read.json(str(root / "*"))
    rows.createOrReplaceTempView("delivered")
    found = engine_session.spark.sql(
        "SELECT gateway, source, count(*), min(date_format(message_created_at, 'yyyy-MM-dd HH:mm:ss')) "
        "FROM delivered GROUP BY ALL ORDER BY source"
    ).collect()
    assert [tuple(row) for row in found] == [
        (GATEWAY, "claude", 7, "2026-11-15 07:00:00"),
        (GATEWAY, "code x", 5, "2026-11-15 07:00:07"),
    ]
