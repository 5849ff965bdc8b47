"""Codex recorded live in part, then imported: the rows are those of an import alone.

The gateway sees only the last exchanges of a session (it was attached later, killed, or the session was resumed). Their
requests repeat the history with ids, so rows are made of it without usage and with the request's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill.unsettled_rows import find_unsettled, select_checkpoints
from hypaware.config import Config
from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.home import Home
from hypaware.lake import health
from hypaware.model import canonical
from hypaware.model.datasets import SEQ, Row
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support import codex_rollouts, exchange_samples
from tests.support.compaction_cases import SmallFiles
from tests.support.history import usage
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.rows import MESSAGES

SCENARIOS = ("resume", "tools", "subagent")
FACTS = ("message_created_at", "date", "git_branch", "git_remote", "head_sha", "cwd", "conversation_started_at")


def exchanges(scenario: str) -> list[DecodedExchange]:
    return list(exchange_samples.read_sample(exchange_samples.SAMPLES / f"codex-0.166.0/{scenario}.ndjson.xz"))


def live_rows(some: Iterable[DecodedExchange]) -> list[Row]:
    seen = ConversationCache()
    return [row for exchange in some for row in project_exchange(exchange, seen).rows]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """All samples of Codex as a user's history."""
    folder = tmp_path / ".codex" / "sessions"
    folder.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (folder / name).write_bytes(codex_rollouts.sample(name))
    return {"HOME": str(tmp_path)}


def import_codex(home: Home, environment: dict[str, str]) -> Any:
    return import_history(home, environment, "codex", now=datetime(2026, 12, 1, tzinfo=UTC)).rows


def lake(home: Home) -> dict[str, Row]:
    rows = [{**row, "attributes": canonical.loads(row["attributes"])} for row in read_lake(home, DATASET)]
    assert len({row["part_id"] for row in rows}) == len(rows)
    return {row["part_id"]: row for row in rows}


@pytest.mark.hazard(101)
@pytest.mark.parametrize("recorded", ["last", "all", "all but first"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_session_recorded_in_part_has_the_tokens_times_and_facts_of_its_rollout(
    tmp_path: Path, environment: dict[str, str], scenario: str, recorded: str
) -> None:
    found = exchanges(scenario)
    seen = {"last": found[-1:], "all": found, "all but first": found[1:]}[recorded]
    alone, both = Home(tmp_path / "alone"), Home(tmp_path / "both")
    import_codex(alone, environment)
    append(both, live_rows(seen))
    flush(both)
    sequences = {row["part_id"]: row[SEQ] for row in read_lake(both, DATASET)}
    report = import_codex(both, environment)
    assert report.settled
    assert SmallFiles(both).compact().errors == []

    expected, rows = lake(alone), lake(both)
    only_live = [row for part, row in rows.items() if part not in expected]
    assert all(row["attributes"]["gateway"]["source"] == "live" for row in only_live)
    assert usage(rows.values()) == usage(expected.values())
    assert {part: [row.get(name) for name in FACTS] for part, row in rows.items() if part in expected} == {
        part: [row.get(name) for name in FACTS] for part, row in expected.items()
    }
    for part, row in expected.items():
        assert row["attributes"]["codex"].items() <= rows[part]["attributes"]["codex"].items()
    assert {row["part_id"]: row[SEQ] for row in read_lake(both, DATASET)}.items() >= sequences.items()


@pytest.mark.hazard(101)
def test_rows_that_an_imported_rollout_could_still_improve_are_found_and_improved(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """As an older version left them: the rollout was read, its rows were dropped as duplicates."""
    alone, home = Home(tmp_path / "alone"), Home(tmp_path / "home")
    import_codex(alone, environment)
    append(home, live_rows(exchanges("tools")[-1:]))
    flush(home)
    live = lake(home).values()
    settled = import_codex(home, environment).settled
    for path in health.list_settlements(home, DATASET):
        path.unlink()
    home.keys.unlink()
    flush(home)
    assert usage(lake(home).values()) != usage(lake(alone).values())
    assert import_codex(home, environment).settled == 0

    with closing(open_home(home).store) as store:
        with store.reading() as connection:
            checkpoints = flushes.list_checkpoints(connection, DATASET)
        chosen = select_checkpoints(checkpoints, {row["conversation_id"] for row in live})
        assert len(chosen) == 1 < len(checkpoints)
        (source,) = find_unsettled(home, Config(), MESSAGES, open_home(home).gateway_id, chosen)
        assert (source.checkpoint, source.rows) == (chosen[0], settled)
        with store.transaction() as connection:
            flushes.forget_checkpoint(connection, source.checkpoint)
    assert import_codex(home, environment).settled == settled
    assert SmallFiles(home).compact().errors == []
    assert usage(lake(home).values()) == usage(lake(alone).values())
    assert find_unsettled(home, Config(), MESSAGES, open_home(home).gateway_id, checkpoints) == []
