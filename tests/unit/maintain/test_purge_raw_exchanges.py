"""A purge removes raw exchanges with every selector and leaves those of other sessions complete."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway.raw_exchanges import PartsMissing, reproject_exchanges, restore_exchange
from hypaware.home import Home
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector, SelectorKind
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import Row
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.testing.fault_injection import run_in_child
from tests.support import exchange_samples
from tests.support.light_lake import read_lake
from tests.support.light_purge import holders, purge
from tests.support.raw_exchanges import EXCHANGES, MESSAGES, append, flush, project_all

SECRET, OPEN = "secret-session", "open-session"
WORDS = "planted words that must not be found"
SHARED = "words that both of them say, long enough to be a part of their own: " + "and so on " * 30


def session(name: str, words: str, start: float, calls: int = 4) -> list[Any]:
    """Return requests that repeat their history, and a call outside the conversation that repeats the user's words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{SHARED}{words}"}]
    metadata = {"user_id": f'{{"session_id": "{name}"}}'}
    found = []
    for number in range(calls):
        content = [{"type": "text", "text": f"{words} answered {number}: {SHARED}"}]
        answer = {"id": f"msg_{name}_{number}", "content": content, "stop_reason": "end_turn"}
        body = {"model": "m", "messages": list(messages), "metadata": metadata, "system": f"{SHARED}{name}"}
        times = exchange_samples.minutes_later(start + number * 400)
        agent = {"user-agent": "claude-cli/2.1.325"}
        found.append(
            exchange_samples.build_exchange(
                "/v1/messages", body, answer, exchange_id=f"{name}-{number}", request_headers=agent, **times
            )
        )
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": f"{words} {number} {SHARED}"},
        ]
    count = {"model": "m", "messages": messages, "metadata": metadata}
    count_call = {
        "exchange_id": f"{name}-aside",
        "request_headers": agent,
        **exchange_samples.minutes_later(start + calls * 400),
    }
    found.append(exchange_samples.build_exchange("/v1/messages/count_tokens", count, {"input_tokens": 3}, **count_call))
    return found


@pytest.fixture
def filled(home: Home) -> Home:
    """A home with two concurrent sessions on two days; the secret one has a folder of its own, half of it is in the
    spool."""
    both = sorted([*session(SECRET, WORDS, 0), *session(OPEN, "open words", 1)], key=lambda each: each.ended_at)
    raw, messages = project_all(both)
    for row in messages:
        row["cwd"] = "/work-of/secret/below" if row["session_id"] == SECRET else "/work-of/open"
    for dataset, rows in ((EXCHANGES, raw), (MESSAGES, messages)):
        half = len(rows) // 2
        append(home, dataset, rows[:half])
        flush(home, dataset)
        append(home, dataset, rows[half:])
    return home


def raw_rows(home: Home) -> list[Row]:
    found = sorted(read_lake(home, EXCHANGES), key=lambda row: row["ts_end"])
    return [row | {name: format_timestamp(row[name]) for name in ("ts_start", "ts_end")} for row in found]


@pytest.mark.hazard(44)
@pytest.mark.parametrize(("kind", "value"), [("session", SECRET), ("cwd", "/work-of/secret")])
def test_raw_exchanges_are_purged_and_those_of_others_stay_complete(
    filled: Home, kind: SelectorKind, value: str
) -> None:
    planned = plan_purge(filled, PurgeSelector(kind, (value,)), lambda *_: None)

    report = purge(filled, kind, value)

    assert report["remaining"] == []
    assert report["left_alone"] == []
    assert _rows(planned) == _rows(report)
    assert holders(filled, WORDS) == set()
    remaining = raw_rows(filled)
    assert {row["session_id"] for row in remaining} == {OPEN}
    assert len(remaining) == 5
    assert not any(projection.skipped["parts_missing"] for projection in reproject_exchanges(remaining))


def test_a_purge_by_folder_removes_its_name_from_the_known_folders(filled: Home, tmp_path: Path) -> None:
    folder = tmp_path / "clients-name"
    folder.mkdir()
    (folder / ".hypignore").write_text("ignore")
    PrivacyPolicy(filled, remember=True).class_of(str(folder), None)
    shutil.rmtree(folder)
    purge(filled, "cwd", str(folder))
    assert holders(filled, "clients-name") == set()
    assert PrivacyPolicy(filled).class_of(str(folder / "below"), None) is PrivacyClass.IGNORE


def _rows(report: dict[str, Any]) -> int:
    """Count all rows: a real run flushes first, a dry run counts the spool."""
    return int(sum(each["rows"] for each in report["datasets"]) + report["spool"]["rows"])


def test_a_purge_by_source_removes_its_raw_exchanges(filled: Home) -> None:
    purge(filled, "source", "claude")

    assert raw_rows(filled) == []
    assert read_lake(filled, MESSAGES) == []


def test_exchanges_that_lost_parts_to_a_purge_by_time_report_it(filled: Home) -> None:
    """Later days are complete. Within the day, purged words are also missing from requests that repeat them."""
    for dataset in (EXCHANGES, MESSAGES):
        flush(filled, dataset)
    rows = [row for row in raw_rows(filled) if row["session_id"] == OPEN]
    first_day = rows[0]["ts_start"][:10]
    assert {row["ts_start"][:10] for row in rows} > {first_day}

    purge(filled, "before", rows[1]["ts_start"])

    remaining = [row for row in raw_rows(filled) if row["session_id"] == OPEN]
    found = list(reproject_exchanges(remaining))
    missing = {
        row["exchange_id"]
        for row, projection in zip(remaining, found, strict=True)
        if projection.skipped["parts_missing"]
    }
    assert missing
    assert missing <= {row["exchange_id"] for row in remaining if row["ts_start"][:10] == first_day}
    incomplete = next(row for row in remaining if row["exchange_id"] in missing)
    with pytest.raises(PartsMissing, match="are missing"):
        restore_exchange(incomplete, lambda _: None)


@pytest.mark.parametrize("point", ["maintain.purge.after-commit", "maintain.purge.after-commit:2"])
def test_a_purge_by_folder_killed_between_tables_still_finds_the_sessions(filled: Home, point: str) -> None:
    def work() -> None:
        purge(filled, "cwd", "/work-of/secret")

    assert not run_in_child(work, crash_at=point)
    report = purge(filled, "cwd", "/work-of/secret")

    assert report["remaining"] == []
    assert holders(filled, WORDS) == set()
    assert {row["session_id"] for row in raw_rows(filled)} == {OPEN}


def undecoded(exchange_id: str, body: str, **columns: Any) -> Row:
    """Return an exchange in an unknown dialect: kept as received, without a session."""
    start = exchange_samples.minutes_later(100)["started_at"]
    row = {"exchange_id": exchange_id, "ts_start": format_timestamp(start), "method": "POST", "path": "/v9/talk"}
    return {**row, "upstream": "other", "request_body": body, "decoded": False, **columns}


NAMED = [
    undecoded("in-its-body", f'{{"thread": "{SECRET}", "said": "{WORDS}"}}'),
    undecoded("in-a-header", WORDS, request_headers={"x-session-id": SECRET}),
    undecoded("in-its-path", WORDS, path=f"/v9/sessions/{SECRET}/talk"),
]
OTHERS = [
    undecoded("of-no-session", '{"said": "other words"}'),
    undecoded("of-one-that-is-called-alike", f'{{"thread": "{SECRET}-2", "other": "my{SECRET}"}}'),
]


@pytest.mark.parametrize(("kind", "value"), [("session", SECRET), ("cwd", "/work-of/secret")])
@pytest.mark.parametrize("flushed", [True, False])
def test_an_undecoded_exchange_is_purged_with_the_session_it_mentions(
    filled: Home, kind: SelectorKind, value: str, flushed: bool
) -> None:
    append(filled, EXCHANGES, [*NAMED, *OTHERS])
    if flushed:
        flush(filled, EXCHANGES)
    planned = plan_purge(filled, PurgeSelector(kind, (value,)), lambda *_: None)

    report = purge(filled, kind, value)

    assert report["remaining"] == []
    assert holders(filled, WORDS) == set()
    remaining = {row["exchange_id"] for row in read_lake(filled, EXCHANGES) if row["session_id"] is None}
    assert remaining == {row["exchange_id"] for row in OTHERS}
    assert _rows(planned) == _rows(report)
    assert {each["dataset"]: each["unattributed"] for each in report["datasets"]}[EXCHANGES] == len(OTHERS)


def test_a_purged_undecoded_exchange_does_not_come_back(filled: Home) -> None:
    append(filled, EXCHANGES, NAMED)
    purge(filled, "session", SECRET)
    append(filled, EXCHANGES, NAMED)
    flush(filled, EXCHANGES)
    assert holders(filled, WORDS) == set()


def test_undecoded_exchanges_of_several_sessions_are_purged(filled: Home) -> None:
    append(filled, EXCHANGES, [*NAMED, *OTHERS, undecoded("of-the-open-one", f"{OPEN} says: {WORDS}")])
    flush(filled, EXCHANGES)

    report = purge(filled, "session", "no-such-session", OPEN, SECRET)

    assert report["remaining"] == []
    assert holders(filled, WORDS) == set()
    assert {row["exchange_id"] for row in read_lake(filled, EXCHANGES)} == {row["exchange_id"] for row in OTHERS}


def test_an_undecoded_exchange_without_a_mention_is_counted_as_unattributed(filled: Home) -> None:
    """Such an exchange cannot be attributed; a purge by source removes it."""
    append(filled, EXCHANGES, [undecoded("repeats", WORDS)])
    flush(filled, EXCHANGES)
    selector = PurgeSelector("session", (SECRET,))
    assert _unattributed(plan_purge(filled, selector, lambda *_: None)) == {EXCHANGES: 1, MESSAGES: 0}

    report = purge(filled, "session", SECRET)

    assert _unattributed(report) == {EXCHANGES: 1, MESSAGES: 0}
    assert len(holders(filled, WORDS)) == 1
    assert purge(filled, "source", "other")["remaining"] == []
    assert holders(filled, WORDS) == set()


def test_a_short_session_id_does_not_match_mentions(filled: Home) -> None:
    append(filled, EXCHANGES, [undecoded("mentions", "run 17 of it")])
    flush(filled, EXCHANGES)

    assert _unattributed(purge(filled, "session", "17")) == {EXCHANGES: 1, MESSAGES: 0}
    assert [row["exchange_id"] for row in read_lake(filled, EXCHANGES) if row["session_id"] is None] == ["mentions"]


def _unattributed(report: dict[str, Any]) -> dict[str, int]:
    return {each["dataset"]: each["unattributed"] for each in report["datasets"]}
