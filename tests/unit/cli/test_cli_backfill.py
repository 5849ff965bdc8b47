"""`hyp backfill` up to the point where it needs Spark: arguments, errors and output."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill import providers
from hypaware.backfill.request import ImportRequest, parse_request
from hypaware.cli import backfill
from hypaware.config import Config
from hypaware.home import Home
from tests.support.plugin_distributions import install

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]
Capture = pytest.CaptureFixture[str]

CLIENT = textwrap.dedent(
    """
    from pathlib import Path
    from hypaware.clients.client import Source
    from hypaware.clients.client import Client


    class Diary:
        name = "diary"
        summary = "what stands in ~/.diary"
        datasets = ("ai_gateway_messages",)
        environment = ("DIARY_HOME",)
        def find(self, environment):
            yield from map(Source, sorted(Path(environment["DIARY_HOME"]).iterdir()))
        def first_time(self, head): return None
        def read(self, reading, environment): raise RuntimeError("the ink has run")

    CLIENT = Client("diary", "a diary", Diary())
"""
)


@pytest.fixture(autouse=True)
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed client with history."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    install(site, "diary-for-hyp", "[hypaware.clients]\ndiary = diary_for_hyp:CLIENT\n", "diary_for_hyp", CLIENT)


@pytest.fixture
def broken(tmp_path: Path) -> None:
    entry = "[hypaware.clients]\nnotes = notes_for_hyp:CLIENT\n"
    install(tmp_path / "site", "notes-for-hyp", entry, "notes_for_hyp", "raise RuntimeError('no luck')")


def test_list_shows_each_provider_and_its_plugin(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("backfill", "list", "--json")

    found = {each["name"]: each for each in json.loads(out)["providers"]}
    assert code == 0
    assert found["diary"] == {
        "name": "diary",
        "plugin": "diary-for-hyp",
        "datasets": ["ai_gateway_messages"],
        "summary": "what stands in ~/.diary",
    }
    code, out, _ = hyp("backfill", "list")
    assert code == 0
    (line,) = (line for line in out.splitlines() if line.startswith("diary"))
    assert "what stands in ~/.diary" in line
    assert "diary-for-hyp" in line
    assert not home.root.exists()


@pytest.mark.usefixtures("broken")
def test_a_client_that_cannot_be_loaded_is_a_warning_and_affects_no_other(hyp: Hyp) -> None:
    code, out, err = hyp("backfill", "list")

    assert code == 0
    assert "diary" in out
    assert "warning: cannot load the client notes from notes-for-hyp: RuntimeError: no luck\n" in err


@pytest.mark.hazard(48)
@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [("dairy", "unknown_provider", "Did you mean diary?"), ("notes", "provider_broken", "no luck")],
)
@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--json"]])
def test_a_provider_that_cannot_run_is_never_skipped_silently(
    hyp: Hyp, home: Home, name: str, kind: str, said: str, options: list[str]
) -> None:
    code, out, err = hyp("backfill", *options, "diary", name)

    assert code == 1
    assert said in (out if "--json" in options else err)
    if "--json" in options:
        assert json.loads(out)["error"]["kind"] == kind
    assert hyp("backfill", "plan", name)[0] == 1
    assert not home.root.exists()


@pytest.mark.hazard(49)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--since", "soon"], "--since 'soon'"),
        (["--until", "2026-02-30"], "--until '2026-02-30'"),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "is after --until"),
        (["--retention-days", "-1"], "--retention-days"),
        (["--retention-days", "1.5"], "--retention-days"),
        (["--retention-days", "some"], "--retention-days"),
        (["--since"], "--since"),
        (["--sinc", "7d"], "--sinc"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_wrong_usage_exits_2_and_changes_nothing(
    hyp: Hyp, home: Home, options: list[str], said: str, dry: list[str]
) -> None:
    code, out, err = hyp("backfill", "diary", *dry, *options)

    assert (code, out) == (2, "")
    assert said in err
    code, out, _ = hyp("backfill", "--json", "diary", *dry, *options)
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")
    assert not home.root.exists()


def test_plan_accepts_a_retention_but_no_window(hyp: Hyp) -> None:
    assert hyp("backfill", "plan", "--retention-days", "-1")[0] == 2
    assert hyp("backfill", "plan", "--since", "7d")[0] == 2


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the history of the diary client."""
    folder = tmp_path / "diary"
    folder.mkdir()
    for day in ("monday", "tuesday"):
        (folder / day).write_text('{"text": "rain"}\n')
    monkeypatch.setenv("DIARY_HOME", str(folder))
    return folder


def test_plan_estimates_the_history_without_reading_it(hyp: Hyp, home: Home, pages: Path) -> None:
    code, out, _ = hyp("backfill", "plan", "diary", "--json")

    (found,) = json.loads(out)["providers"]
    assert code == 0
    assert (found["provider"], found["plugin"], found["datasets"]) == (
        "diary",
        "diary-for-hyp",
        ["ai_gateway_messages"],
    )
    assert (found["plan"]["estimated_items"], found["plan"]["estimated_bytes"]) == (2, 34)
    code, out, _ = hyp("backfill", "plan", "diary")
    assert code == 0
    assert out.splitlines()[2].split() == ["diary", "2", "34", "bytes"]
    assert str(pages) in out
    assert not home.root.exists()


@pytest.mark.hazard(48)
def test_a_plan_that_fails_for_one_provider_exits_1(hyp: Hyp) -> None:
    code, out, _ = hyp("backfill", "plan", "diary", "--json")

    (found,) = json.loads(out)["providers"]
    assert (code, found["plan"], found["error"]["kind"]) == (1, None, "provider_error")
    code, _, err = hyp("backfill", "plan", "diary")
    assert code == 1
    assert "warning: diary failed (provider_error): " in err
    assert err.endswith("error: the import failed for diary\n")


@pytest.mark.hazard(48)
@pytest.mark.hazard(54)
@pytest.mark.usefixtures("pages")
def test_a_failed_dry_run_is_reported_and_leaves_no_trace(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("backfill", "--dry-run", "diary", "--json")

    document = json.loads(out)
    (found,) = document["providers"]
    assert (code, document["dry_run"], document["error"]["kind"]) == (1, True, "providers_failed")
    assert (found["status"], found["error"]["kind"], found["rows_written"]) == ("failed", "provider_error", 0)
    code, out, err = hyp("backfill", "--dry-run", "diary")
    assert code == 1
    assert out.splitlines()[2].startswith("diary")
    assert "RuntimeError: the ink has run" in err
    assert "Traceback" not in err
    assert not home.root.exists()


def test_no_enabled_provider_is_reported_and_exits_0(hyp: Hyp) -> None:
    for each in providers.load_providers():
        hyp("config", "set", f"clients.{each.name}.enabled", "false")

    for command in (["backfill"], ["backfill", "--dry-run"], ["backfill", "plan"]):
        code, out, err = hyp(*command)
        assert (code, out) == (0, "")
        assert err.startswith("nothing to import: no provider is enabled")
        assert "diary" in err
        code, out, err = hyp(*command, "--json")
        assert (code, json.loads(out)["providers"]) == (0, [])
        assert json.loads(out)["reason"] in err
        assert "enabled" in err


def test_the_json_of_a_run_without_providers_has_all_keys_and_the_reason(hyp: Hyp) -> None:
    for each in providers.load_providers():
        hyp("config", "set", f"clients.{each.name}.enabled", "false")

    assert set(json.loads(hyp("backfill", "--json")[1])) == {"run_id", "dry_run", "providers", "reason"}
    assert json.loads(hyp("backfill", "--dry-run", "--json")[1])["dry_run"] is True
    assert set(json.loads(hyp("backfill", "plan", "--json")[1])) == {"run_id", "providers", "reason"}


def test_the_help_of_backfill_shows_its_own_options_and_its_subcommands(hyp: Hyp) -> None:
    code, out, _ = hyp("backfill", "--help")

    assert code == 0
    assert "Usage: hyp backfill [OPTIONS] [PROVIDER]..." in out
    for shown in ("--since", "--until", "--retention-days", "--dry-run", "--json", "list", "plan"):
        assert shown in out
    assert "Usage: hyp backfill plan [OPTIONS] [PROVIDER]..." in hyp("backfill", "plan", "--help")[1]
    assert "Usage: hyp backfill list [OPTIONS]\n" in hyp("backfill", "list", "--help")[1]


def test_a_subcommand_after_an_option_is_an_error_that_shows_the_right_order(hyp: Hyp) -> None:
    code, out, _ = hyp("backfill", "--json", "list")

    assert code == 2
    assert "put it first" in json.loads(out)["error"]["message"]


def result(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "diary",
        "plugin": "diary-for-hyp",
        "datasets": ["ai_gateway_messages"],
        "status": "ok",
        "items_seen": 12,
        "sessions_seen": 1092,
        "rows_written": 376036,
        "rows_skipped": 17,
        "rows_rejected": 0,
        "files_unchanged": 0,
        "lines_skipped": {},
        "summary": {
            "sessions": 1092,
            "rows": 376036,
            "tokens": {"input_tokens": 1234567, "output_tokens": 89, "cache_read_tokens": 40, "cache_write_tokens": 2},
            "first_day": "2026-01-02",
            "last_day": "2026-11-15",
        },
        "files": 12,
        "files_skipped": {},
        "held_back": 0,
        **changes,
    }


NOTHING: dict[str, Any] = {"items_seen": 0, "sessions_seen": 0, "rows_written": 0, "rows_skipped": 0, "files": 0}


def wanted(home: Home) -> ImportRequest:
    variables = {"HOME": "/home/dev"}
    found = providers.load_providers()
    return parse_request(home, Config(), found, names=["diary"], now=datetime.now(UTC), variables=variables)


def shown(capfd: Capture, home: Home, *, dry_run: bool = False, **changes: Any) -> tuple[str, str]:
    report = {"run_id": "run-1", "dry_run": dry_run, "providers": [result(**changes)]}
    backfill.show_import(report, wanted(home), home)
    out, err = capfd.readouterr()
    return out, err


def test_the_summary_shows_sessions_rows_tokens_and_days(capfd: Capture, home: Home) -> None:
    out, err = shown(capfd, home)

    head, _rule, line = out.splitlines()
    assert " ".join(head.split()) == "client sessions written already stored rejected tokens in out cached from to"
    assert line.split() == ["diary", "1,092", "376,036", "17", "0", "1,234,567", "89", "42", "2026-01-02", "2026-11-15"]
    assert err == "next: hyp overview\n"


def test_the_summary_of_a_dry_run_shows_what_would_be_written(capfd: Capture, home: Home) -> None:
    out, err = shown(capfd, home, dry_run=True, rows_rejected=3)

    assert "would write" in out.splitlines()[0]
    assert err == "warning: diary: 3 rows would be rejected\nnext: hyp backfill\n"


def test_everything_that_was_not_imported_is_listed_with_the_reason(capfd: Capture, home: Home) -> None:
    out, err = shown(
        capfd,
        home,
        files_unchanged=1500,
        lines_skipped={"not_json": 1, "unknown_type": 1200},
        files_skipped={"unreadable": 1},
        held_back=2,
        rows_rejected=3,
    )

    assert out.splitlines()[3:] == [
        "diary: 1,500 files unchanged since the last import",
        "diary: 1,201 lines produced no row: unknown_type 1,200, not_json 1",
        "diary: 1 file not read: unreadable 1",
        "diary: 2 messages held back: still being written, left for the next import",
    ]
    kept = home.spool / "ai_gateway_messages" / "rejected"
    assert f"warning: diary: 3 rows rejected; see {kept} for the reasons\n" in err


def test_a_failed_provider_is_reported_with_the_reason(capfd: Capture, home: Home) -> None:
    error = {"kind": "dataset_mismatch", "message": "no place for it"}

    out, err = shown(capfd, home, status="failed", error=error, **NOTHING)

    assert "warning: diary failed (dataset_mismatch): no place for it\n" in err
    assert "no history found" not in out


def test_the_searched_places_are_shown_if_no_history_was_found(capfd: Capture, home: Home) -> None:
    out, err = shown(capfd, home, **NOTHING)

    said = "diary: no history found in what stands in ~/.diary (DIARY_HOME is not set, HOME=/home/dev)"
    assert out.splitlines()[3:] == [said]
    assert err == ""


@pytest.mark.hazard(62)
def test_a_reason_is_escaped_for_the_terminal(capfd: Capture, home: Home) -> None:
    error = {"kind": "provider_error", "message": "\x1b[2J"}

    out, err = shown(capfd, home, lines_skipped={"\x1b[2J": 1}, status="failed", error=error)

    assert "\x1b" not in out + err


def test_places_that_cannot_be_imported_are_named(
    hyp: Hyp, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / ".config" / "Codex"
    app.mkdir(parents=True)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (found,) = json.loads(hyp("backfill", "codex", "--dry-run", "--json")[1])["providers"]
    assert found["unsupported_locations"] == [str(app)]
    assert f"codex: history in places that cannot be imported: {app}" in hyp("backfill", "codex", "--dry-run")[1]
