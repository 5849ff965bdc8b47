"""Live rows and their transcript: one row for each part, delivered once, whatever is killed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from tests.acceptance.test_keeping import Site
from tests.support import codex_rollouts, exchange_samples
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.live_rows import Part
from tests.support.rows import DATASET

NOW = datetime.now(UTC).isoformat()
WHEN: dict[str, Any] = {"message_created_at": NOW, "conversation_started_at": NOW}
KINDS = ("user", "answer", "call")
# Each costs a Spark start; tests/unit/lake/test_settlements.py kills at every point.
KILLED_FLUSHES = ("lake.thin.after-write", "lake.record.after-commit")
KILLED_COMPACTIONS = ("maintain.compact.after-commit",)


@pytest.mark.hazard(68)
@pytest.mark.hazard(83)
def test_a_conversation_recorded_live_and_imported_is_stored_and_delivered_once(hyp: Hyp, tmp_path: Path) -> None:
    site = Site(hyp, tmp_path / "archive")
    parts = [Part(number, KINDS[number % 3]) for number in range(30)]
    delivered: Counter[str] = Counter()
    for start in range(0, 30, 6):
        some = parts[start : start + 6]
        site.flush(*(part.live(**WHEN) for part in some))
        if start % 12 == 0:
            # Half of it is delivered before the native id is known; the destination keeps it under the live id.
            hyp.ok("export")
            delivered.update(f"live-{part.number}#0" for part in some)
        else:
            delivered.update(f"{part.native_id}#0" for part in some)
        hyp.ingest([part.native(**WHEN) for part in some])
        if start // 6 < len(KILLED_FLUSHES):
            killed = hyp.run("flush", HYP_CRASH_AT=KILLED_FLUSHES[start // 6])
            assert killed.code != 0, killed.out
        (report,) = hyp.ok("flush")["datasets"]
        assert report["rows_written"] == 0
        if start // 6 < len(KILLED_COMPACTIONS):
            killed = hyp.run("maintain", "--compact-only", HYP_CRASH_AT=KILLED_COMPACTIONS[start // 6])
            assert killed.code != 0, killed.out
        site.kept("--compact-only")
    sequences = {row["part_id"]: row[SEQ] for row in read_lake(Home(hyp.home), DATASET)}
    assert set(sequences) == {f"{part.native_id}#0" for part in parts}
    assert site.lake().total() == 30
    hyp.ok("export")
    assert site.delivered() == delivered
    # The client resends its history, and the transcript is read again.
    site.flush(*(part.live(**WHEN) for part in parts), *(part.native(**WHEN) for part in parts))
    site.kept("--force")
    hyp.ok("export")
    assert {row["part_id"]: row[SEQ] for row in read_lake(Home(hyp.home), DATASET)} == sequences
    assert site.delivered() == delivered
    rows = hyp.query(f"SELECT count(*) n, count(DISTINCT cwd) folders FROM {DATASET} WHERE git_branch = 'main'")
    assert rows == [{"n": 30, "folders": 1}]
    audit = hyp.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out


@pytest.mark.hazard(101)
def test_verify_finds_live_rows_that_an_imported_transcript_could_complete(hyp: Hyp, tmp_path: Path) -> None:
    """An older version read the rollout and dropped its rows as duplicates."""
    folder = tmp_path / "codex" / "sessions"
    folder.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (folder / name).write_bytes(codex_rollouts.sample(name))
    seen = list(exchange_samples.read_sample(exchange_samples.SAMPLES / "codex-0.166.0/tools.ndjson.xz"))
    shown = project_exchange(seen[-1], ConversationCache()).rows
    hyp.ingest([{**row, "message_created_at": "2026-11-20T07:00:00Z"} for row in shown])
    hyp.ok("flush")
    history = {"CODEX_HOME": str(folder.parent), "HOME": str(tmp_path)}
    hyp.ok("backfill", "codex", **history)
    for path in (Home(hyp.home).lake / "settlements").rglob("*.parquet"):
        path.unlink()
    Home(hyp.home).keys.unlink()
    hyp.ok("flush")
    audit = hyp.run("verify", "--json")
    assert audit.code != 0
    (failed,) = [check for check in audit.json["checks"] if not check["ok"]]
    assert failed["name"] == "transcripts"
    repaired = hyp.run("verify", "--repair", "--json")
    assert repaired.code == 0, repaired.out
    hyp.ok("backfill", "codex", **history)
    hyp.ok("maintain", "--compact-only")
    late = "get_json_object(attributes, '$.gateway.time_source') = 'request' OR date = '2026-11-20'"
    assert hyp.query(f"SELECT count(*) n FROM {DATASET} WHERE ({late}) AND provider_type <> 'gateway'") == [{"n": 0}]
    audit = hyp.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out
