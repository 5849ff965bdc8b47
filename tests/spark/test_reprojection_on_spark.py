"""`reproject` with Spark: raw exchanges of real clients, with and without their projected messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake import schema
from hypaware.lake.flush import flush_datasets
from hypaware.model.datasets import Row, coerce_row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from hypaware.reproject import preview_reprojection, run_reprojection
from hypaware.spool.writer import Spool
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support.raw_exchanges import EXCHANGES, MESSAGES, project_all, recorded

pytestmark = pytest.mark.spark

CLAUDE = ("claude-2.1.325/tools", "claude-2.1.325/subagent", "claude-2.1.325/compact", "claude-2.1.325/resume")
CODEX = ("codex-0.166.0/tools", "codex-0.166.0/resume", "codex-0.166.0/subagent")


@dataclass
class Context:
    home: Home
    session: EngineSession
    config: Config = field(default_factory=Config)
    messages: list[str] = field(default_factory=list)

    @property
    def spark(self) -> Any:
        return self.session.spark

    def progress(self, message: str, *_: object, **__: object) -> None:
        self.messages.append(message)

    def note(self, message: str) -> None:
        self.messages.append(message)

    def emit(self, chunk: bytes) -> None:
        raise AssertionError("it has no bytes to give")

    def check_cancelled(self) -> None:
        pass


@pytest.fixture
def own_tables(engine_session: EngineSession, engine_home: Home) -> Iterator[None]:
    """Remove all tables and state before and after the test."""
    _forget(engine_session, engine_home)
    yield
    _forget(engine_session, engine_home)


def _forget(session: EngineSession, home: Home) -> None:
    for name in (MESSAGES, EXCHANGES):
        session.spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(name)} PURGE")
    with closing(open_home(home).store) as store, store.transaction() as connection:
        flushes.lower_high_water(connection, MESSAGES, 0)
        connection.execute(f"DELETE FROM high_water WHERE dataset = '{EXCHANGES}'")


@pytest.mark.usefixtures("own_tables")
def test_raw_exchanges_give_the_rows_of_a_live_projection_without_duplicates(
    engine_session: EngineSession, engine_home: Home
) -> None:
    """Every third message of Claude sessions is missing, as after an older decoder, and all of Codex sessions."""
    context = Context(engine_home, engine_session)
    claude_raw, claude_made = project_all(recorded(*CLAUDE))
    codex_raw, codex_made = project_all(recorded(*CODEX))
    missed = {row["message_id"] for row in claude_made[::3]}
    with Spool(engine_home) as spool:
        spool.append(EXCHANGES, [*claude_raw, *codex_raw])
        spool.append(MESSAGES, [row for row in claude_made if row["message_id"] not in missed])
        wanted = [coerce_row(AI_GATEWAY_MESSAGES, row, spool.gateway_id) for row in (*claude_made, *codex_made)]
    flush_datasets(context, [EXCHANGES, MESSAGES])
    there = stored(context, wanted)

    planned = preview_reprojection(engine_home, Config(), TimeWindow(), lambda *_: None)
    found = run_reprojection(context, {})

    assert stored(context, wanted) == sorted(wanted, key=_part)
    assert found["exchanges"] == len(claude_raw) + len(codex_raw)
    assert found["sessions"] == len({row["session_id"] for row in wanted})
    assert found["rows_projected"] == len(wanted)
    assert (found["rows_written"], found["rows_duplicate"]) == (len(wanted) - len(there), len(there))
    assert {**planned, "dry_run": False} == found
    again = run_reprojection(context, {})
    assert (again["rows_written"], again["rows_duplicate"]) == (0, len(wanted))
    assert again["skipped"] == found["skipped"]
    assert "reading raw exchanges" in context.messages


def stored(context: Context, wanted: list[Row]) -> list[Row]:
    """Return the rows of these sessions in producer form."""
    from pyspark.sql import functions as F

    sessions = sorted({row["session_id"] for row in wanted})
    columns = [column.name for column in AI_GATEWAY_MESSAGES.columns]
    found = (
        context.spark.table(schema.full_table_name(MESSAGES)).where(F.col("session_id").isin(sessions)).select(*columns)
    )
    rows = [
        coerce_row(AI_GATEWAY_MESSAGES, _without_nulls(row), row["gateway_id"]) for row in found.toArrow().to_pylist()
    ]
    return sorted(rows, key=_part)


def _without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _part(row: Row) -> str:
    return str(row["part_id"])
