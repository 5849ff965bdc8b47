"""Reprojection on a lightweight lake: missing rows are added, existing ones are not duplicated."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.faults import list_crash_points
from hypaware.gateway.exchange import DecodedExchange
from hypaware.home import Home
from hypaware.model.datasets import SEQ, Row
from hypaware.privacy import ignored_sessions
from hypaware.reproject import ReprojectionReport, append_missing, preview_reprojection, run_reprojection
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support import exchange_samples
from tests.support.light_home import NO_TIMER
from tests.support.light_lake import read_lake
from tests.support.light_purge import purge
from tests.support.raw_exchanges import EXCHANGES, MESSAGES, flush, project_all, recorded, store

CLAUDE = ("claude-2.1.325/tools", "claude-2.1.325/subagent", "claude-2.1.325/compact")
CODEX = ("codex-0.166.0/tools", "codex-0.166.0/resume")
EVERYTHING = TimeWindow()
_INTERNAL = (SEQ, "_hyp_cache_row_id", "_hyp_cache_batch_id")
POINTS = [point.name for point in list_crash_points() if point.name.startswith("reproject.append.")]


def reproject(home: Home, window: TimeWindow = EVERYTHING) -> dict[str, Any]:
    """Run the job with the flush of a lightweight lake."""
    outcome = ReprojectionReport(dry_run=False)
    opened = open_home(home)
    with closing(opened.store):
        added = append_missing(opened, Config(), window, outcome, lambda *_: None)
    if added:
        outcome.add_flush(added, flush(home, MESSAGES).rows)
    return outcome.as_json()


def counted(home: Home, window: TimeWindow = EVERYTHING) -> dict[str, Any]:
    return preview_reprojection(home, Config(), window, lambda *_: None)


def messages(home: Home) -> list[Row]:
    found = [{name: value for name, value in row.items() if name not in _INTERNAL} for row in read_lake(home, MESSAGES)]
    return sorted(found, key=lambda row: row["part_id"])


@pytest.mark.parametrize("scenarios", [CLAUDE, CODEX])
def test_raw_exchanges_give_the_same_rows_as_the_gateway(
    home: Home, tmp_path_factory: pytest.TempPathFactory, scenarios: tuple[str, ...]
) -> None:
    raw, made = project_all(recorded(*scenarios))
    live_home = Home(tmp_path_factory.mktemp("live") / "home")
    gateway = {"gateway_id": Spool(home, NO_TIMER).gateway_id}
    store(home, EXCHANGES, raw)
    store(live_home, MESSAGES, made)

    found = reproject(home)

    assert [{**row, **gateway} for row in messages(live_home)] == messages(home)
    assert found["exchanges"] == len(raw)
    assert (found["rows_projected"], found["rows_written"], found["rows_duplicate"]) == (len(made), len(made), 0)
    assert found["sessions"] == len({row["session_id"] for row in raw if "session_id" in row})
    again = reproject(home)
    assert (again["rows_written"], again["rows_duplicate"]) == (0, len(made))


def test_only_rows_that_an_older_decoder_missed_are_added(home: Home) -> None:
    raw, made = project_all(recorded(*CLAUDE))
    missed = {row["message_id"] for row in made[::3]}
    store(home, EXCHANGES, raw)
    store(home, MESSAGES, [row for row in made if row["message_id"] not in missed])
    before = {row["part_id"]: row[SEQ] for row in read_lake(home, MESSAGES)}

    planned = counted(home)
    found = reproject(home)

    after = {row["part_id"]: row[SEQ] for row in read_lake(home, MESSAGES)}
    assert {part: after[part] for part in before} == before
    assert len(after) == len(made) == len(before) + found["rows_written"]
    assert {**planned, "dry_run": False} == found


def test_a_dry_run_changes_nothing_in_the_home(home: Home) -> None:
    raw, made = project_all(recorded("codex-0.166.0/tools"))
    assert counted(home)["exchanges"] == 0
    assert not home.root.exists()
    store(home, EXCHANGES, raw)
    before = _files(home)

    assert counted(home)["rows_written"] == len(made)
    assert _files(home) == before


def test_a_window_selects_exchanges_and_changes_no_id(home: Home) -> None:
    exchanges = recorded("claude-2.1.325/tools")
    raw, made = project_all(exchanges)
    store(home, EXCHANGES, raw)
    middle = sorted(row["ts_start"] for row in raw)[len(raw) // 2]

    late = reproject(home, TimeWindow(since=middle))
    ids = {row["part_id"] for row in messages(home)}
    early = reproject(home, TimeWindow(until=middle))

    assert 0 < len(ids) < len(made)
    assert late["exchanges"] + early["exchanges"] == len(raw) + raw_at(raw, middle)
    assert late["rows_written"] + early["rows_written"] == len(made) == len(messages(home))


def raw_at(raw: list[Row], moment: str) -> int:
    return sum(row["ts_start"] == moment for row in raw)


def test_an_exchange_that_could_not_be_decoded_before_gives_its_whole_history(home: Home) -> None:
    last = recorded("claude-2.1.325/tools")[-1]
    raw, made = project_all([last])
    store(home, EXCHANGES, [{**raw[0], "decoded": False}])

    assert reproject(home)["rows_written"] == len(made)
    assert any('"time_source"' in row["attributes"] for row in messages(home))


def test_undecodable_exchanges_are_counted_by_reason(home: Home) -> None:
    raw, made = project_all(recorded("claude-2.1.325/tools"))
    turns = [row for row in raw if row.get("decoded") and row["metadata"]["kind"] == "turn"]
    unknown = project_all([exchange_samples.build_exchange("/v9/telepathy", {"a": 1}, {"b": 2}, exchange_id="odd")])[0]
    base = next(row for row in turns if (row["body_refs"] or {}).get("new"))
    foreign = {**unknown[0], "exchange_id": "theirs", "gateway_id": "another"}
    store(home, EXCHANGES, [*(row for row in raw if row is not base), *unknown])
    keep_foreign(home, foreign)

    found = reproject(home)

    assert found["skipped"]["parts_missing"] >= 1
    assert found["skipped"]["no_dialect:/v9/telepathy"] == 1
    assert found["skipped"]["another_gateway"] == 1
    assert found["exchanges"] == len(raw)
    assert found["rows_written"] < len(made)


def keep_foreign(home: Home, row: Row) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append_coerced(EXCHANGES, [{**row, "metadata": None, "request_headers": None, "response_headers": None}])
    flush(home, EXCHANGES)


def test_a_session_that_is_ignored_today_is_skipped(home: Home) -> None:
    raw, _ = project_all(recorded(*CODEX))
    store(home, EXCHANGES, raw)
    sessions = Counter(row["session_id"] for row in raw if "session_id" in row)
    chosen = min(sessions)
    ignored_sessions.ignore_session(home, chosen)

    found = reproject(home)

    assert found["skipped"]["ignored"] == sessions[chosen]
    assert {row["session_id"] for row in messages(home)} == sessions.keys() - {chosen}


@pytest.mark.hazard(85)
def test_purged_messages_are_not_restored_from_their_raw_exchange(home: Home) -> None:
    raw, made = project_all(recorded("codex-0.166.0/tools"))
    store(home, MESSAGES, made)
    session = made[0]["session_id"]
    purge(home, "session", session)
    # Exchanges of the session are purged too; a purge of the messages alone keeps the exchange.
    store(home, EXCHANGES, [{**row, "session_id": None} for row in raw])

    planned, found = counted(home), reproject(home)

    assert messages(home) == []
    assert found["rows_purged"] == planned["rows_purged"] == len(made)
    assert found["rows_written"] == planned["rows_written"] == 0


@pytest.mark.hazard(66)
def test_a_fork_without_its_stored_origin_does_not_claim_its_history(home: Home) -> None:
    def asked(session: str, number: int, messages: list[dict[str, Any]]) -> DecodedExchange:
        body = {"model": "m", "messages": messages, "metadata": {"user_id": f'{{"session_id": "{session}"}}'}}
        answer = {"id": f"msg_{session}_{number}", "content": [{"type": "text", "text": f"answer {number}"}]}
        times = exchange_samples.minutes_later(number)
        return exchange_samples.build_exchange("/v1/messages", body, answer, exchange_id=f"{session}-{number}", **times)

    begin: list[dict[str, Any]] = [{"role": "user", "content": "the beginning"}]
    more = [*begin, {"role": "assistant", "content": [{"type": "text", "text": "answer 1"}]}]
    origin = asked("origin", 1, begin)
    fork = asked("fork", 2, [*more, {"role": "user", "content": "another way"}])
    raw, made = project_all([origin, fork])
    store(home, MESSAGES, made)
    store(home, EXCHANGES, raw[1:])

    found = reproject(home)

    assert len(made) == 4
    assert (found["rows_written"], found["rows_duplicate"], found["skipped"]) == (0, 2, {"earlier_history": 2})


@pytest.mark.parametrize("point", [*POINTS, *(f"{name}:2" for name in POINTS)])
def test_a_killed_run_is_completed_by_the_next_one_without_duplicates(
    home: Home, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr("hypaware.reproject.BATCH_ROWS", 8)
    raw, made = project_all(recorded("claude-2.1.325/subagent"))
    store(home, EXCHANGES, raw)

    assert not run_in_child(lambda: void(reproject(home)), crash_at=point)
    flush(home, MESSAGES)
    reproject(home)

    assert Counter(row["part_id"] for row in messages(home)) == Counter(_parts(made))
    # The next run removes the temporary files of the killed one.
    assert not list((home.engine / "tmp").iterdir())


def test_rows_of_a_run_killed_before_its_flush_remain_in_the_spool(home: Home) -> None:
    raw, made = project_all(recorded("codex-0.166.0/tools"))
    store(home, EXCHANGES, raw)

    assert not run_in_child(lambda: void(run_reprojection(_NoSpark(home), {})), crash_at="reproject.flush.before-flush")
    assert counted(home)["rows_written"] == 0
    flush(home, MESSAGES)

    assert Counter(row["part_id"] for row in messages(home)) == Counter(_parts(made))
    assert run_reprojection(_NoSpark(home), {})["rows_written"] == 0


@dataclass(frozen=True)
class _NoSpark:
    """A job context without Spark."""

    home: Home
    config: Config = field(default_factory=Config)

    @property
    def spark(self) -> Any:
        raise AssertionError("nothing is to be flushed")

    def progress(self, *_: object, **__: object) -> None: ...

    def note(self, message: str) -> None: ...

    def emit(self, chunk: bytes) -> None: ...

    def check_cancelled(self) -> None: ...


def void(_: object) -> None:
    return None


def _parts(made: list[Row]) -> list[str]:
    return [f"{row['message_id']}#{row['part_index']}" for row in made]


def _files(home: Home) -> dict[str, bytes]:
    return {
        str(path.relative_to(home.root)): path.read_bytes()
        for path in sorted(home.root.rglob("*"))
        if path.is_file() and not path.is_relative_to(home.engine) and not path.is_relative_to(home.run)
    }
