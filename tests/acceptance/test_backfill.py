"""`hyp backfill` as a user runs it, with real Spark: smoke tests, kills, dry runs, growing histories."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from tests.support import claude_files, claude_transcripts, codex_oracle, codex_rollouts
from tests.support.claude_files import grow, turns, write
from tests.support.claude_oracle import claude_totals
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.processes import PATIENCE
from tests.support.rows import row

DATASET = "ai_gateway_messages"
IMPORT_POINTS = sorted(
    point.name
    for point in list_crash_points()
    if point.package in ("lake", "iceberg", "state")
    and not point.name.startswith(("iceberg.roll-back", "lake.rejects", "lake.reserve", "lake.remove"))
    and not point.name.startswith(("lake.settlements", "lake.tombstones", "iceberg.relocate"))
)
# Each kill costs a Spark start. Points without Spark are tested in tests/unit/backfill, and here only in a soak.
SPARKS = ("lake.intake", "lake.build", "lake.thin", "lake.commit", "iceberg.fsync.before", "lake.record")
KILLS = [point for point in IMPORT_POINTS if point.startswith(SPARKS) or "HYP_SOAK" in os.environ]


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path / "claude" / "projects" / "-project"


def only(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["providers"]
    assert isinstance(found, dict)
    return found


def lake_of(hyp: Hyp) -> list[dict[str, Any]]:
    return read_lake(Home(hyp.home), DATASET)


def tokens_in(rows: list[dict[str, Any]]) -> int:
    usages = (json.loads(row["attributes"] or "{}").get("usage") for row in rows)
    return sum(usage["output_tokens"] for usage in usages if usage)


def files_below(home: Path) -> dict[str, str]:
    """The files that a dry run must not touch: all except the folders of a running engine."""
    found = (path for path in home.rglob("*") if path.is_file())
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
        if path.relative_to(home).parts[0] not in ("engine", "run", "logs")
    }


@pytest.mark.hazard(50)
def test_imports_killed_at_each_crash_point_in_turn_store_every_part_once(inline: Hyp, projects: Path) -> None:
    """Each import finds a new session, a longer one and a fork. It first recovers the previous, killed import."""
    expected: list[dict[str, Any]] = []
    longest = write(projects / "long.jsonl", turns("long", 1))
    expected += turns("long", 1)
    for place, point in enumerate(KILLS):
        name = f"s{place}"
        own = list(turns(name, 2, start=claude_files.START.replace(day=1 + place % 28)))
        write(projects / f"{name}.jsonl", iter(own))
        copied = [{**line, "sessionId": f"{name}-fork"} for line in own]
        fork = list(turns(f"{name}-fork", 1, first=2))
        write(projects / f"{name}-fork.jsonl", iter([*copied, *fork]), age=claude_files.LONG_AGO - 60)
        longer = list(turns("long", 1, first=1 + place))
        grow(longest, iter(longer), age=claude_files.LONG_AGO - place)
        expected += [*own, *fork, *longer]
        killed = inline.run("backfill", "claude", HYP_CRASH_AT=point)
        assert killed.code == -signal.SIGKILL, f"{point} was not reached: {killed.out}{killed.err}"
    inline.ok("backfill", "claude")
    rows = lake_of(inline)
    assert Counter(row["part_id"] for row in rows) == Counter({f"{line['uuid']}#0" for line in expected})
    assert len({row[SEQ] for row in rows}) == len(rows)
    assert tokens_in(rows) == 10 * len({line["message"]["id"] for line in expected if line["type"] == "assistant"})
    assert only(inline.ok("backfill", "claude"))["rows_written"] == 0
    audit = inline.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out


@pytest.mark.hazard(54)
def test_a_dry_run_predicts_the_run_exactly_and_changes_no_file(hyp: Hyp, projects: Path) -> None:
    write(projects / "s.jsonl", turns("s", 3))
    first = only(hyp.ok("backfill", "claude", "--dry-run"))
    assert not hyp.home.exists(), "a dry run does not even make the home"
    assert _told(first) == _told(only(hyp.ok("backfill", "claude")))

    copied = iter([{**line, "sessionId": "fork"} for line in turns("s", 3)])
    write(projects / "fork.jsonl", chain(copied, turns("fork", 2, first=3)))
    spooled = [_as_sent(row) for row in lake_of(hyp) if row["session_id"] == "s"]
    hyp.ok("ingest", DATASET, "-", stdin="".join(json.dumps(row) + "\n" for row in spooled))
    before = files_below(hyp.home)
    second = only(hyp.ok("backfill", "claude", "--dry-run"))
    assert files_below(hyp.home) == before
    assert (second["rows_written"], second["rows_skipped"]) == (6, 9)
    assert _told(second) == _told(only(hyp.ok("backfill", "claude")))


def _told(provider: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in provider.items() if name not in ("run_id",)}


def _as_sent(row: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in row.items() if value is not None and not name.startswith("_hyp")}
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in told.items()}


@pytest.mark.hazard(1)
def test_a_dry_run_counts_spooled_rows_as_present(hyp: Hyp, projects: Path, tmp_path: Path) -> None:
    write(projects / "s.jsonl", turns("s", 2))
    hyp.ok("backfill", "claude")
    rows = [_as_sent(row) for row in lake_of(hyp)]
    fresh = Hyp(tmp_path / "fresh", inline=True)
    sent = [{**row, "gateway_id": None} for row in rows[:4]]
    fresh.ok("ingest", DATASET, "-", stdin="".join(json.dumps(row) + "\n" for row in sent))
    told = only(fresh.ok("backfill", "claude", "--dry-run"))
    assert (told["rows_written"], told["rows_skipped"]) == (2, 4)
    done = only(fresh.ok("backfill", "claude"))
    assert (done["rows_written"], done["rows_skipped"]) == (2, 4)
    assert {row["part_id"] for row in lake_of(fresh)} == {row["part_id"] for row in rows}


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that fails when it is read")
def test_a_segment_that_cannot_be_read_costs_a_warning_and_its_rows_come_later_once(
    hyp: Hyp, projects: Path, tmp_path: Path
) -> None:
    write(projects / "s.jsonl", turns("s", 2))
    (tmp_path / "row").write_text(json.dumps(row(1)))
    hyp.ok("ingest", DATASET, str(tmp_path / "row"))
    (segment,) = (hyp.home / "spool" / DATASET / "sealed").iterdir()
    aside = segment.rename(tmp_path / segment.name)
    # The first page of a process's memory is never mapped: reading it is a real I/O error, for root as well.
    segment.symlink_to("/proc/self/mem")
    for options in (("--dry-run",), ()):
        found = only(hyp.ok("backfill", "claude", *options))
        assert (found["status"], found["rows_written"]) == ("ok", 6)
        assert "Input/output error" in found["warnings"][0]
    sql = f"SELECT count(*) AS rows FROM {DATASET}"
    assert hyp.ok("query", "sql", sql, "--refresh", "always", "--format", "json") == [{"rows": 6}]
    kinds = [each["kind"] for each in hyp.ok("status")["diagnostics"]]
    assert "segment_unreadable" in kinds
    assert hyp.run("flush").code == 1
    segment.unlink()
    aside.rename(segment)
    hyp.ok("flush")
    assert len(lake_of(hyp)) == 7


@pytest.mark.hazard(50)
def test_two_concurrent_imports_store_every_part_once(hyp: Hyp, projects: Path) -> None:
    """The second finds sources that were imported with another window; the parts outside that window are still due."""
    for number in range(12):
        write(projects / f"s{number}.jsonl", turns(f"s{number}", 200, lines=1))
    hyp.ok("flush")
    narrow = hyp.start("backfill", "claude", "--since", "2026-10-01T09:00:00Z", "--json")
    wide = hyp.start("backfill", "claude", "--json")
    for process in (narrow, wide):
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    rows = lake_of(hyp)
    assert len({row["part_id"] for row in rows}) == len(rows) == 12 * 400
    assert tokens_in(rows) == 12 * 200 * 10


def test_an_import_with_nothing_to_do_reports_it_and_does_not_start_spark(hyp: Hyp, projects: Path) -> None:
    projects.mkdir(parents=True)
    result = hyp.run("backfill")
    assert result.code == 0
    assert "starting Spark" not in result.err


@pytest.mark.hazard(48)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_an_unknown_provider_is_an_error_that_lists_the_known_ones(hyp: Hyp, more: tuple[str, ...]) -> None:
    result = hyp.run("backfill", "clade", "--json", *more)
    assert result.code == 1
    assert result.json["error"]["kind"] == "unknown_provider"
    assert "claude" in result.json["error"]["message"]


def telemetry_of(home: Path, signal_: str) -> Iterator[dict[str, Any]]:
    for path in sorted((home / "telemetry").glob(f"{signal_}-*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def test_backfill_claude_fixture(hyp: Hyp, projects: Path) -> None:
    """Smoke test: a user's queries, the telemetry, and a second run that adds nothing."""
    write(projects / "s.jsonl", turns("s", 3))
    extra = {"HYP_DEV_TELEMETRY": "1", "DEV_RUN_ID": "smoke-claude"}
    document = hyp.ok("backfill", "claude", **extra)
    assert document["run_id"] == "smoke-claude"
    assert only(document)["rows_written"] == 9
    found = hyp.query("SELECT role, count(*) AS parts FROM ai_gateway_messages GROUP BY role ORDER BY role")
    assert found == [{"role": "assistant", "parts": 6}, {"role": "user", "parts": 3}]
    check_telemetry(hyp.home, "smoke-claude", "claude", items=1, written=9)
    assert only(hyp.ok("backfill", "claude", **extra))["rows_written"] == 0


def test_backfill_codex_fixture(hyp: Hyp, projects: Path, tmp_path: Path) -> None:
    """Smoke test over files written by the real client; an independent oracle counts the tokens."""
    sessions = tmp_path / "codex" / "sessions" / "2026" / "11" / "15"
    sessions.mkdir(parents=True)
    expected: Counter[str] = Counter()
    for name in codex_rollouts.sample_names():
        path = sessions / name
        path.write_bytes(codex_rollouts.sample(name))
        claude_files.aged(path, claude_files.LONG_AGO)
        expected.update(codex_oracle.tokens(path.read_bytes()))
    extra = {"HYP_DEV_TELEMETRY": "1", "DEV_RUN_ID": "smoke-codex"}
    found = only(hyp.ok("backfill", "codex", **extra))
    assert found["rows_written"] == 118
    assert sql_tokens(hyp) == {name: count for name, count in expected.items() if count}
    check_telemetry(hyp.home, "smoke-codex", "codex", items=found["items_seen"], written=118)
    assert only(hyp.ok("backfill", "codex", **extra))["rows_written"] == 0


def test_transcripts_of_the_real_clients_give_the_totals_of_an_independent_oracle(
    hyp: Hyp, projects: Path, tmp_path: Path
) -> None:
    paths = claude_transcripts.unpacked(tmp_path / "claude" / "projects")
    oracle = claude_totals(paths)
    found = only(hyp.ok("backfill", "claude"))
    assert found["status"] == "ok"
    assert sql_tokens(hyp) == {name: count for name, count in oracle.tokens.items() if count}
    parts = hyp.query("SELECT role, part_type, count(*) AS n FROM ai_gateway_messages GROUP BY role, part_type")
    assert {(row["role"], row["part_type"]): row["n"] for row in parts} == dict(oracle.parts)


def sql_tokens(hyp: Hyp) -> dict[str, int]:
    kinds = ("input", "output", "cache_read", "cache_write", "reasoning", "total")
    sums = ", ".join(
        f"sum(CAST(get_json_object(attributes, '$.usage.{kind}_tokens') AS BIGINT)) AS {kind}_tokens" for kind in kinds
    )
    (row,) = hyp.query(f"SELECT {sums} FROM ai_gateway_messages")
    return {name: count for name, count in row.items() if count}


def check_telemetry(home: Path, run_id: str, provider: str, items: int, written: int) -> None:
    spans = {span["name"]: span["attributes"] for span in telemetry_of(home, "traces")}
    for name in ("start", "plan", "provider_start", "materialize", "write", "flush", "provider_finish"):
        about = spans[f"backfill.{name}"]
        assert about["dev_run_id"] == run_id
        assert about["hyp_component"] == "backfill"
        assert about["status"] in ("ok", "skipped")
        assert name == "start" or about["provider"] == provider
    finish = spans["backfill.provider_finish"]
    assert (finish["items_seen"], finish["rows_written"], finish["rows_skipped"]) == (items, written, 0)
    assert spans["backfill.write"]["row_count"] == written
    assert spans["backfill.start"]["provider_count"] == 1
    logs = {log["name"]: log["attributes"] for log in telemetry_of(home, "logs")}
    assert logs["backfill.finish"]["total_rows_written"] == written
    assert logs["backfill.finish"]["error_count"] == 0
    assert logs["backfill.scan"]["dev_run_id"] == run_id


def test_a_history_that_is_imported_while_it_grows_ends_up_complete(hyp: Hyp, projects: Path) -> None:
    path = projects / "s.jsonl"
    lines = list(turns("s", 60))
    write(path, iter(lines[:1]), age=0)
    step = max(1, 71 // int(os.environ.get("HYP_SOAK", "1")))
    for place in range(1, len(lines), step):
        grow(path, iter(lines[place : place + step]), age=0)
        hyp.ok("backfill", "claude")
    claude_files.aged(path, claude_files.LONG_AGO)
    hyp.ok("backfill", "claude")
    rows = lake_of(hyp)
    assert len(rows) == len(lines)
    assert tokens_in(rows) == 600
