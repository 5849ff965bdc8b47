"""`hyp export`, its status, dead letters, adopt and resend: output and exit codes.

The engine runs the jobs of `tests.support.delivery_jobs`, without Spark. Everything else is real, including the
destination.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypaware.engine import client, inline
from hypaware.engine.launcher import Engine
from hypaware.export import dead_letter_rows, stream_locks
from hypaware.export.stream_locks import lock_stream
from hypaware.home import Home
from hypaware.lake.schema import page_schema
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state import streams
from tests.support import light_home
from tests.support.command import HYP
from tests.support.delivery_home import DeliveryHome, key
from tests.support.delivery_jobs import rounds_of
from tests.support.foreign_rows import add_foreign_rows
from tests.support.processes import PATIENCE
from tests.support.rows import rows

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]


@pytest.fixture(autouse=True)
def light_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HYP_ENGINE", "inline")
    monkeypatch.setattr(
        client, "Engine", lambda home: Engine(home, jobs="tests.support.delivery_jobs", check=lambda: None)
    )
    yield
    inline.close_inline()


@pytest.fixture
def standing(home: Home, tmp_path: Path) -> DeliveryHome:
    """Create a home with a sink `archive` that delivers to a folder."""
    found = DeliveryHome(home)
    found.declare(archive=tmp_path / "archive")
    return found


def as_json(ran: Ran) -> Any:
    return json.loads(ran[1])


def manifests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.rglob("_manifests/*.json"))]


def delivered_rows(folder: Path) -> int:
    return sum(int(manifest["rows"]) for manifest in manifests(folder))


# Delivery


def test_without_a_sink_export_shows_how_to_configure_one(hyp: Hyp, home: Home) -> None:
    code, out, err = hyp("export", "--json")
    assert (code, json.loads(out)) == (0, {"sinks": []})
    assert "hyp config set sinks.archive" in err
    assert hyp("export", "status", "--json")[:2] == (0, '{\n  "streams": []\n}\n')
    assert "hyp config set sinks.archive" in hyp("export", "status")[2]
    assert not home.root.exists()


def test_the_suggested_command_configures_a_sink(hyp: Hyp) -> None:
    command = hyp("export")[2].strip().partition("To add one: hyp ")[2]
    assert hyp(*shlex.split(command))[0] == 0
    assert as_json(hyp("export", "--json"))["sinks"][0]["sink"] == "archive"


@pytest.mark.parametrize("arguments", [["archiv"], ["archive", "archiv", "--dry-run"]])
def test_an_unknown_sink_is_an_error_that_suggests_the_nearest_name(
    hyp: Hyp, standing: DeliveryHome, arguments: list[str]
) -> None:
    code, out, _ = hyp("export", *arguments, "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "unknown_sink"
    assert "Did you mean archive?" in json.loads(out)["error"]["message"]
    assert rounds_of(standing.home) == []


def test_pending_rows_are_delivered_and_reported(hyp: Hyp, standing: DeliveryHome, tmp_path: Path) -> None:
    light_home.append(standing.home, [*rows(6), *rows(3, start=6, client_name="codex")])
    report = as_json(hyp("export", "--json"))
    (sink,) = report["sinks"]
    assert (sink["sink"], sink["status"]) == ("archive", "ok")
    assert [(each["source"], each["rows"], each["chunks"]) for each in sink["streams"]] == [
        ("claude", 6, 1),
        ("codex", 3, 1),
    ]
    assert set(sink["streams"][0]) == {
        *("dataset", "source", "after", "last", "rows", "bytes", "chunks", "dead_letters", "withheld", "redacted"),
    }
    assert delivered_rows(tmp_path / "archive") == 9
    light_home.append(standing.home, rows(2, start=20))
    code, out, err = hyp("export", "archive")
    assert code == 0
    assert "archive: ok" in out
    assert "delivering to archive" in err


@pytest.mark.hazard(59)
def test_withheld_rows_and_redaction_rules_are_counted_without_their_content(
    hyp: Hyp, standing: DeliveryHome, tmp_path: Path
) -> None:
    secret = "gh" + "p_" + "a1B2" * 9
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/.hypignore").write_text("local-only")
    closed = rows(2, start=3, cwd=str(tmp_path / "closed"))
    light_home.append(standing.home, [*rows(3, content_text=f"use {secret}"), *closed])
    code, out, err = hyp("export")
    assert code == 0
    assert "archive: 2 private rows not sent" in err
    assert "secrets redacted in the sent rows: github-token 3" in err
    assert delivered_rows(tmp_path / "archive") == 3
    # The state, with its copy of the row, is lost, so the row is read from the lake.
    standing.buried(key(), "ab" * 16, 2)
    _, shown, _ = hyp("export", "dead-letters", "show", "ab", "--json")
    assert "[github-token:" in shown
    assert secret not in out + err + shown


def test_an_export_without_new_rows_starts_no_engine(hyp: Hyp, standing: DeliveryHome) -> None:
    light_home.append(standing.home, rows(6))
    hyp("export")
    assert len(rounds_of(standing.home)) == 1
    (sink,) = as_json(hyp("export", "--json"))["sinks"]
    assert len(rounds_of(standing.home)) == 1
    assert sink["status"] == "ok"
    (stream,) = sink["streams"]
    assert (stream["after"], stream["last"], stream["rows"], stream["bytes"], stream["chunks"]) == (6, 6, 0, 0, 0)


def test_a_sink_without_rows_is_ok(hyp: Hyp, standing: DeliveryHome) -> None:
    assert as_json(hyp("export", "--json")) == {"sinks": [{"sink": "archive", "status": "ok", "streams": []}]}
    code, out, _ = hyp("export")
    assert code == 0
    assert "no rows in the lake for this sink yet" in out
    assert rounds_of(standing.home) == []


@pytest.mark.hazard(54)
def test_a_dry_run_counts_and_leaves_no_trace(hyp: Hyp, standing: DeliveryHome, tmp_path: Path) -> None:
    assert as_json(hyp("export", "--dry-run", "--json"))["sinks"][0]["streams"] == []
    assert [path.name for path in standing.home.root.iterdir()] == ["config.toml"]
    light_home.append(standing.home, rows(6))
    light_home.flush(standing.home)
    light_home.append(standing.home, rows(2, start=6))
    before = sorted(path for path in standing.home.root.rglob("*"))
    code, out, err = hyp("export", "--dry-run", "--json")
    (stream,) = json.loads(out)["sinks"][0]["streams"]
    assert (code, stream["after"], stream["last"], stream["rows"], stream["chunks"]) == (0, 0, 6, 6, 0)
    assert "has rows in the spool" in err
    assert sorted(path for path in standing.home.root.rglob("*")) == before
    assert not (tmp_path / "archive").exists()
    assert rounds_of(standing.home) == []


@pytest.mark.hazard(87)
def test_a_sink_with_a_new_destination_is_held_with_the_commands_to_decide(
    hyp: Hyp, standing: DeliveryHome, tmp_path: Path
) -> None:
    light_home.append(standing.home, rows(6))
    hyp("export")
    standing.declare(archive=tmp_path / "elsewhere")
    light_home.append(standing.home, rows(2, start=6))
    code, out, _ = hyp("export", "--json")
    report = json.loads(out)
    assert code == 1
    assert report["sinks"][0]["status"] == "held"
    assert report["error"]["kind"] == "held"
    assert report["error"]["repair"] == ["hyp export adopt archive", "hyp export resend archive"]
    code, out, err = hyp("export")
    assert code == 1
    assert "held" in out
    assert "try: hyp export adopt archive" in err
    (held,) = as_json(hyp("export", "--dry-run", "--json"))["sinks"]
    assert held["status"] == "held"
    assert "elsewhere" in held["streams"][0]["error"]["message"]


@pytest.mark.hazard(87)
@pytest.mark.parametrize(("word", "arrived"), [("adopt", 2), ("resend", 8)])
def test_adopt_delivers_the_rest_and_resend_delivers_everything_to_the_new_destination(
    hyp: Hyp, standing: DeliveryHome, tmp_path: Path, word: str, arrived: int
) -> None:
    light_home.append(standing.home, rows(6))
    hyp("export")
    standing.declare(archive=tmp_path / "elsewhere")
    light_home.append(standing.home, rows(2, start=6))
    assert hyp("export")[0] == 1
    document = as_json(hyp("export", word, "archive", "--yes", "--json"))
    assert document["sink"] == "archive"
    assert document["streams"][0]["was_held"] == "elsewhere"
    assert hyp("export")[0] == 0
    assert delivered_rows(tmp_path / "elsewhere") == arrived
    assert delivered_rows(tmp_path / "archive") == 6


def test_an_unreachable_destination_fails_only_its_own_sink(hyp: Hyp, standing: DeliveryHome, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    standing.declare(archive=tmp_path / "archive", broken=tmp_path / "file" / "inside")
    light_home.append(standing.home, rows(6))
    code, out, _ = hyp("export", "--max-wait", "0", "--json")
    report = json.loads(out)
    found = {sink["sink"]: sink["status"] for sink in report["sinks"]}
    assert (code, found["archive"]) == (1, "ok")
    assert found["broken"] in ("failed", "partial")
    assert report["error"]["kind"] == "not_delivered"
    assert "broken" in report["error"]["message"]
    assert "archive" not in report["error"]["message"]
    assert delivered_rows(tmp_path / "archive") == 6
    code, out, err = hyp("export", "--max-wait", "0")
    assert code == 1
    assert "warning: broken" in err


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90.0), ("10m", 600.0), ("7", 7.0), ("0", 0.0), (None, 60.0)])
def test_the_maximum_wait_is_a_duration(hyp: Hyp, standing: DeliveryHome, given: str | None, seconds: float) -> None:
    light_home.append(standing.home, rows(1))
    assert hyp("export", *(["--max-wait", given] if given else []))[0] == 0
    assert rounds_of(standing.home)[0] == {"sinks": ["archive"], "max_wait": seconds, "budget": None}


@pytest.mark.parametrize("given", ["soon", "-5s", "5 parsecs", ""])
def test_an_invalid_wait_is_wrong_usage(hyp: Hyp, standing: DeliveryHome, given: str) -> None:
    code, out, _ = hyp("export", "--max-wait", given, "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")


def test_sync_is_the_same_command(hyp: Hyp, standing: DeliveryHome) -> None:
    light_home.append(standing.home, rows(1))
    assert as_json(hyp("sync", "archive", "--json"))["sinks"][0]["status"] == "ok"
    assert as_json(hyp("sync", "status", "--json"))["streams"][0]["watermark"] == 1


# Status


def test_the_status_has_every_documented_key_of_a_stream(hyp: Hyp, standing: DeliveryHome) -> None:
    light_home.append(standing.home, rows(6))
    hyp("export")
    light_home.append(standing.home, rows(2, start=6))
    light_home.flush(standing.home)
    code, out, _ = hyp("export", "status", "--json")
    (stream,) = json.loads(out)["streams"]
    assert code == 0
    assert {name: stream[name] for name in ("sink", "dataset", "source", "watermark", "high_water", "lag_rows")} == {
        "sink": "archive",
        "dataset": "ai_gateway_messages",
        "source": "claude",
        "watermark": 6,
        "high_water": 8,
        "lag_rows": 2,
    }
    assert (stream["exported_rows"], stream["pending"], stream["last_error"]) == (6, None, None)
    assert stream["lag_seconds"] >= 0
    assert datetime.fromisoformat(stream["last_success_at"]).tzinfo is not None
    assert (
        datetime.fromisoformat(stream["updated_at"]) <= datetime.now(UTC) < datetime.fromisoformat(stream["next_round"])
    )


@pytest.mark.hazard(100)
def test_rows_without_a_sequence_are_not_called_delivered(hyp: Hyp, standing: DeliveryHome) -> None:
    light_home.append(standing.home, rows(3))
    light_home.flush(standing.home)
    add_foreign_rows(standing.home, 2)
    warning = "2 rows of ai_gateway_messages that another program added without a sequence are not delivered"
    code, _, err = hyp("export")
    assert code == 0
    assert warning in err
    assert "hyp verify --repair" in err
    code, _, err = hyp("export", "status")
    assert (code, warning in err) == (0, True)
    (stream,) = as_json(hyp("export", "status", "--json"))["streams"]
    assert (stream["lag_rows"], stream["rows_without_sequence"]) == (0, 2)


def test_the_status_shows_each_problem_and_its_repair(hyp: Hyp, standing: DeliveryHome, tmp_path: Path) -> None:
    standing.declare(archive=tmp_path / "archive", team=tmp_path / "team")
    standing.recorded(claude=20)
    for sink in ("archive", "team"):
        standing.delivered(key(sink), 20)
    standing.buried(key(), "letter-1", 5)
    with standing.change() as connection:
        streams.hold_stream(
            connection, key(), streams.HELD_ADDRESS_CHANGED, "the sink points elsewhere: `hyp export adopt archive`"
        )
        streams.record_failure(
            connection, key("team"), "\x1b[31mno answer", datetime.now(UTC) + timedelta(minutes=9.9), 3
        )
    code, out, err = hyp("export", "status")
    assert code == 0
    assert "hyp export adopt archive" in out
    assert "hyp export dead-letters list --sink archive" in out
    assert "no answer (retry in 10 minutes); to try now: hyp export team" in out
    assert "\x1b" not in out
    assert "hyp daemon start" in err


@pytest.mark.hazard(87)
def test_a_new_destination_is_reported_before_the_next_delivery(
    hyp: Hyp, standing: DeliveryHome, tmp_path: Path
) -> None:
    standing.recorded(claude=20)
    standing.delivered(key(), 20)
    before = standing.address()
    standing.declare(archive=tmp_path / "elsewhere")
    (stream,) = as_json(hyp("export", "status", "--json"))["streams"]
    assert (stream["delivered_to"], stream["address"]) == (before, standing.address())
    out = hyp("export", "status")[1]
    assert f"was delivered to {before}" in out
    assert "hyp export adopt archive" in out


def test_a_rebuilt_state_is_reported(hyp: Hyp, standing: DeliveryHome) -> None:
    light_home.append(standing.home, rows(6))
    hyp("export")
    standing.home.state.write_bytes(b"this is no database" * 100)
    (standing.home.root / "state.db.suspect").touch()
    assert "warning: the state was damaged" in hyp("export", "status")[2]


# Dead letters


@pytest.fixture
def refused(standing: DeliveryHome) -> DeliveryHome:
    """Record two of eight rows as dead letters; the copy of the second was lost with the state."""
    standing.recorded(claude=8)
    _bury(standing)
    return standing


@pytest.fixture
def refused_rows(standing: DeliveryHome) -> DeliveryHome:
    """Do the same for rows that are in the lake."""
    light_home.append(standing.home, rows(8))
    light_home.flush(standing.home)
    _bury(standing)
    return standing


def _bury(standing: DeliveryHome) -> None:
    standing.delivered(key(), 8)
    schema = page_schema(datasets.get("ai_gateway_messages"))
    row = {**dict.fromkeys(schema.names), SEQ: 7, "message_id": "message-6", "attributes": '{"a":1}'}
    standing.buried(key(), "a" * 32, 7, dead_letter_rows.pack_rows(pa.Table.from_pylist([row], schema=schema)))
    standing.buried(key(), "ab" + "c" * 30, 8)


@pytest.mark.parametrize(("words", "said"), [(("shwo",), "Did you mean show?"), (("--json", "list"), "list")])
def test_an_unknown_subcommand_of_dead_letters_is_wrong_usage(hyp: Hyp, words: tuple[str, ...], said: str) -> None:
    code, out, _ = hyp("export", "dead-letters", *words, *(() if "--json" in words else ("--json",)))
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")
    assert said in json.loads(out)["error"]["message"]


def test_dead_letters_are_listed_with_their_reason(hyp: Hyp, refused: DeliveryHome) -> None:
    for command in (["list"], []):
        code, out, _ = hyp("export", "dead-letters", *command, "--json")
        found = json.loads(out)["dead_letters"]
        assert (code, [letter["id"] for letter in found]) == (0, ["a" * 32, "ab" + "c" * 30])
        assert found[0] == {
            "id": "a" * 32,
            "sink": "archive",
            "dataset": "ai_gateway_messages",
            "source": "claude",
            "after": 6,
            "last": 7,
            "rows": 1,
            "reason": "too odd",
            "at": "2026-11-15T07:00:00+00:00",
        }
    assert "too odd" in hyp("export", "dead-letters")[1]
    assert as_json(hyp("export", "dead-letters", "--sink", "archive", "--json"))["dead_letters"] == found
    code, out, _ = hyp("export", "dead-letters", "list", "--sink", "archiv", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "unknown_sink")
    assert "2 dead letters to replay or drop: hyp export dead-letters list" in hyp("export")[2]


def test_a_dead_letter_is_shown_with_its_rows(hyp: Hyp, refused_rows: DeliveryHome) -> None:
    shown = as_json(hyp("export", "dead-letters", "show", "aa", "--json"))
    assert (shown["id"], shown["reason"]) == ("a" * 32, "too odd")
    assert shown["payload"] == [{"message_id": "message-6", "attributes": {"a": 1}}]
    from_the_lake = as_json(hyp("export", "dead-letters", "show", "ab", "--json"))
    (row,) = from_the_lake["payload"]
    assert (row["message_id"], row["attributes"]) == ("message-7", {"usage": {"output_tokens": 7}})
    assert "message-6" in hyp("export", "dead-letters", "show", "aa")[1]


@pytest.mark.parametrize(
    ("given", "kind"), [("a", "ambiguous"), ("b", "unknown_dead_letter"), ("", "unknown_dead_letter")]
)
@pytest.mark.parametrize("command", [["show"], ["replay"], ["drop", "--yes"]])
def test_a_dead_letter_is_found_by_a_unique_prefix_of_its_id(
    hyp: Hyp, refused: DeliveryHome, command: list[str], given: str, kind: str
) -> None:
    code, out, _ = hyp("export", "dead-letters", *command, given, "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, kind)
    assert len(refused.letters()) == 2


@pytest.mark.hazard(27)
def test_replayed_dead_letters_are_delivered_and_removed(hyp: Hyp, refused_rows: DeliveryHome) -> None:
    assert as_json(hyp("export", "dead-letters", "replay", "ab", "--json")) == {
        "replayed": [{"id": "ab" + "c" * 30, "status": "delivered"}]
    }
    assert refused_rows.letters() == ["a" * 32]
    code, out, _ = hyp("export", "dead-letters", "replay", "--all", "--sink", "archive")
    assert code == 0
    assert "delivered" in out
    assert refused_rows.letters() == []
    assert as_json(hyp("export", "dead-letters", "replay", "--all", "--json")) == {"replayed": []}


def test_a_dead_letter_that_cannot_be_delivered_is_kept_and_exits_1(
    hyp: Hyp, refused: DeliveryHome, tmp_path: Path
) -> None:
    refused.declare(archive=tmp_path / "elsewhere")
    code, out, _ = hyp("export", "dead-letters", "replay", "--all", "--json")
    report = json.loads(out)
    assert code == 1
    assert [each["status"] for each in report["replayed"]] == ["failed", "failed"]
    assert "elsewhere" in report["replayed"][0]["reason"]
    assert report["error"]["kind"] == "not_delivered"
    assert len(refused.letters()) == 2


@pytest.mark.parametrize("arguments", [[], ["aa", "--all"], ["aa", "--sink", "archive"]])
def test_a_replay_needs_ids_or_all(hyp: Hyp, refused: DeliveryHome, arguments: list[str]) -> None:
    assert hyp("export", "dead-letters", "replay", *arguments)[0] == 2
    assert len(refused.letters()) == 2


def test_a_dropped_dead_letter_is_also_removed_from_the_mirror(hyp: Hyp, refused: DeliveryHome) -> None:
    assert as_json(hyp("export", "dead-letters", "drop", "ab", "--yes", "--json")) == {"dropped": ["ab" + "c" * 30]}
    assert refused.letters() == ["a" * 32]
    kept = json.loads(refused.home.mirror.read_bytes())["deliveries"]["dead_letters"]
    assert [letter["id"] for letter in kept] == ["a" * 32]


def test_without_a_home_there_are_no_dead_letters(hyp: Hyp, home: Home) -> None:
    assert as_json(hyp("export", "dead-letters", "--json")) == {"dead_letters": []}
    code, out, _ = hyp("export", "dead-letters", "show", "aa", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "unknown_dead_letter")
    assert not home.root.exists()


# Destructive commands


DESTRUCTIVE = [("adopt", "archive"), ("resend", "archive"), ("dead-letters", "drop", "aa")]


@pytest.mark.parametrize("command", DESTRUCTIVE, ids=" ".join)
def test_without_a_terminal_and_yes_nothing_is_changed(
    hyp: Hyp, refused: DeliveryHome, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as null_file:
        monkeypatch.setattr(sys, "stdin", null_file)
        code, out, _ = hyp("export", *command, "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "not_confirmed")
    assert len(refused.letters()) == 2
    assert refused.stream(key()).watermark == 8


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 130, 2), (b"y\n", 0, 1), (b"\n", 130, 2)])
def test_on_a_terminal_destructive_commands_ask_for_confirmation(
    refused: DeliveryHome, answer: bytes, code: int, left: int
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [HYP, "export", "dead-letters", "drop", "aa"],
        env={**os.environ, "HYP_HOME": str(refused.home.root)},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    os.write(ours, answer)
    _, err = process.communicate(timeout=PATIENCE)
    os.close(ours)
    assert process.returncode == code
    assert b"will never be delivered to archive" in err
    assert len(refused.letters()) == left


@pytest.mark.parametrize("command", DESTRUCTIVE, ids=" ".join)
def test_nothing_is_changed_during_a_running_delivery(
    hyp: Hyp, refused: DeliveryHome, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_locks, "COMMAND_WAIT_SECONDS", 0.0)
    with lock_stream(refused.home, key()):
        code, out, _ = hyp("export", *command, "--yes", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "stream_busy")
    assert len(refused.letters()) == 2
