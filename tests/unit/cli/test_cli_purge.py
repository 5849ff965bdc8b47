"""`hyp purge` up to the point where it needs an engine: selection, counts and output."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hypaware.cli import purge
from hypaware.home import Home
from tests.support.light_home import append, flush
from tests.support.rows import rows

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--session", "a", "--source", "b"),
        ("--cwd", "/x", "--before", "2026-01-01"),
        ("--session", ""),
        ("--cwd", ""),
        ("--session", "a\udcff"),
        ("--cwd", "/x\udcff"),
        ("--before", "yesterday"),
        ("--before", "2026-02-30"),
        ("--before", (datetime.now(UTC) + timedelta(days=3)).date().isoformat()),
    ],
)
def test_an_ambiguous_selection_is_rejected(hyp: Hyp, home: Home, options: tuple[str, ...]) -> None:
    code, out, err = hyp("purge", *options, "--yes", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")
    assert not home.root.exists()
    assert hyp("purge", *options, "--yes")[0] == 2
    assert err == ""


def test_without_a_terminal_purge_needs_yes(hyp: Hyp, home: Home) -> None:
    append(home, rows(1))
    code, out, _ = hyp("purge", "--session", "session-1", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "not_confirmed")
    assert not home.tombstones.exists()


def test_a_prefix_of_a_session_id_is_enough_if_it_is_unique(hyp: Hyp, home: Home) -> None:
    append(home, [*rows(2, session_id="abc-1"), *rows(1, 2, session_id="abd-2")])
    counted = json.loads(hyp("purge", "--session", "abc", "--dry-run", "--json")[1])
    assert counted["spool"]["rows"] == 2
    code, out, _ = hyp("purge", "--session", "ab", "--dry-run", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "ambiguous_session")
    assert "abc-1, abd-2" in json.loads(out)["error"]["message"]


def test_an_unknown_session_is_refused_and_no_tombstone_is_written(hyp: Hyp, home: Home) -> None:
    append(home, rows(1))
    code, out, _ = hyp("purge", "--session", "never-seen", "--yes", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "unknown_session")
    assert not home.tombstones.exists()


def test_purge_without_a_home_finds_nothing(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("purge", "--source", "claude", "--yes", "--json")
    result = json.loads(out)
    assert (code, result["dry_run"], result["datasets"], result["remaining"]) == (0, False, [], [])
    code, out, err = hyp("purge", "--session", "session-1", "--unknown", "--yes")
    assert (code, out) == (0, "no matching rows\n")
    assert "nothing is recorded" in err
    assert "will not restore them" not in err, "there is no tombstone that would keep them out"
    assert not home.root.exists()


def test_a_dry_run_counts_by_dataset_and_source_without_an_engine(hyp: Hyp, home: Home) -> None:
    append(home, [*rows(4, cwd="/home/dev/acme"), *rows(3, start=4, client_name="codex", cwd="/home/dev/acme/src")])
    flush(home)
    append(home, rows(2, start=7, cwd="/home/dev/acme"))
    code, out, _ = hyp("purge", "--cwd", "/home/dev/acme/", "--dry-run", "--json")
    result = json.loads(out)
    assert (code, result["dry_run"], result["selector"]) == (0, True, {"kind": "cwd", "values": ["/home/dev/acme"]})
    assert [(each["rows"], each["sources"]) for each in result["datasets"]] == [(7, {"claude": 4, "codex": 3})]
    assert result["spool"]["rows"] == 2
    code, out, _ = hyp("purge", "--cwd", "/home/dev/acme", "--cwd", "/elsewhere", "--dry-run")
    assert code == 0
    assert "rows to delete" in out
    assert hyp("purge", "--cwd", "/home/dev/ac", "--dry-run")[1] == "no matching rows\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/a/b/", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/", ""),
        ("C:\\work\\acme\\", "C:\\work\\acme"),
        ("~", str(Path.home())),
    ],
)
def test_a_folder_is_resolved_to_its_absolute_path(given: str, meant: str) -> None:
    assert purge._normalize_folder(given) == meant


def test_remaining_files_are_reported_with_the_repair(hyp: Hyp, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home, rows(1))
    report = {
        "selector": {"kind": "session", "values": ["s 1"]},
        "dry_run": False,
        "datasets": [
            {
                "dataset": "ai_gateway_messages",
                "rows": 3,
                "sources": {"claude": 3},
                "files_looked_at": 9,
                "files_rewritten": 1,
                "files_removed": 0,
                "orphans_removed": 0,
                "unattributed": 2,
            }
        ],
        "left_alone": ["others"],
        "spool": {"rows": 1, "held": ["ai_gateway_messages/x.jsonl"]},
        "rejects": 1,
        "dead_letters": {"letters": 1, "rows": 1},
        "delivered": [
            {
                "sink": "team",
                "destination": "https://host",
                "dataset": "ai_gateway_messages",
                "source": "claude",
                "rows": 2,
                "rows_under_way": 1,
                "unknown": False,
            }
        ],
        "tombstones": {"set": 1, "lifted": 0, "parts": 4},
        "again": False,
        "remaining": [{"file": "logs/cli.log", "what": "ids of 1 purged rows"}],
        "looked_for": {"rows": 3, "ids": 3},
    }
    monkeypatch.setattr("hypaware.cli.purge.run_job", lambda name, args: report)
    code, out, err = hyp("purge", "--session", "s 1", "--unknown", "--yes")
    assert code == 1
    assert "1 data files rewritten, 0 deleted, 9 examined" in out
    for result in (
        "others has no such column",
        "2 rows of ai_gateway_messages have no session id and do not mention a purged one;",
        "delivered to https://host (team, claude)",
        "logs/cli.log",
        "hyp purge --session 's 1'",
    ):
        assert result in err
    code, out, _ = hyp("purge", "--session", "s 1", "--unknown", "--yes", "--json")
    result = json.loads(out)
    assert (code, result["error"]["kind"], result["remaining"]) == (1, "purge_incomplete", report["remaining"])
