"""A dry run reports exactly what a setup would do, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from tests.unit.setup.conftest import tree

Hyp = Callable[..., tuple[int, str, str]]


def steps(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the steps by name, those of clients by the name of the client."""
    return {str(each.get("client") or each["step"]): each for each in document["steps"]}


def test_a_dry_run_without_a_home_creates_nothing(hyp: Hyp, user: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    code, out, err = hyp("setup", "--yes", "--attach", "--dry-run")
    assert code == 0, err
    assert tree(tmp_path) == before
    # The config, the import, and a patch of each client's settings.
    assert "+[clients.claude]" in out
    assert "18 rows of 2 sessions would be imported" in out
    assert '"ANTHROPIC_BASE_URL": "http://127.0.0.1:18521/claude"' in out
    assert "+openai_base_url = " in out
    assert "would be downloaded to" in out
    # A missing requirement is reported with its repair.
    assert "Spark requires Java 17 or 21" in out


def test_unreadable_history_is_reported(hyp: Hyp, user: Path) -> None:
    """`hyp backfill` reports it too, but a user of `hyp setup` may never run that."""
    (user / ".claude/projects/-p/broken.jsonl").write_text("no JSON\n")
    _, out, _ = hyp("setup", "--client", "claude", "--dry-run")
    assert "claude: 1 line produced no row: not_json 1" in out


def test_the_json_document_contains_every_step(hyp: Hyp, user: Path, home: Home) -> None:
    code, out, _ = hyp(
        "init",
        "--attach",
        "--dry-run",
        "--json",
        "--client",
        "claude",
        "--retention-days",
        "0",
        "--export",
        "server",
        "https://hyp.example",
    )
    document = json.loads(out)
    assert (code, document["dry_run"], document["clients"]) == (0, True, ["claude"])
    result = steps(document)
    assert [each["status"] for each in result.values()] == ["would"] * 5
    assert str(home.root / "server-token") in result["config"]["diff"]
    (claude,) = document["backfill"]["providers"]
    assert (claude["rows_written"], claude["sessions_seen"], claude["status"]) == (18, 2, "ok")
    files = (user / ".claude/projects").rglob("*.jsonl")
    assert result["import"]["bytes"] == sum(path.stat().st_size for path in files)
    assert document["overview"] is None


@pytest.mark.parametrize(
    ("flag", "skipped"),
    [
        ("--no-daemon", {"daemon", "claude", "codex"}),
        ("--no-attach", {"claude", "codex"}),
        ("--yes", {"claude", "codex"}),
        ("--attach", set()),
        ("--no-backfill", {"import", "claude", "codex"}),
    ],
)
def test_declined_steps_are_skipped(hyp: Hyp, user: Path, flag: str, skipped: set[str]) -> None:
    code, out, _ = hyp("setup", flag, "--dry-run", "--json")
    result = steps(json.loads(out))
    assert code == 0
    assert {name for name, each in result.items() if each["status"] == "skipped"} == skipped


def test_a_dry_run_changes_nothing_in_an_existing_home(hyp: Hyp, user: Path, home: Home, tmp_path: Path) -> None:
    assert hyp("setup", "--yes", "--no-daemon", "--no-backfill")[0] == 3
    before = tree(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in (home.root, *home.root.rglob("*"))}
    code, out, _ = hyp("setup", "--yes", "--dry-run", "--json")
    assert (code, steps(json.loads(out))["config"]["status"]) == (0, "unchanged")
    assert tree(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_dry_run_also_needs_force_for_a_change(hyp: Hyp, user: Path, home: Home) -> None:
    home.root.mkdir(mode=0o700)
    home.config.write_text("version = 1\n[retention]\ndefault_days = 30\n")
    code, _, err = hyp("setup", "--dry-run", "--retention-days", "7")
    assert code == 1
    assert "try: hyp setup --retention-days 7 --dry-run --force" in err
    code, out, _ = hyp("setup", "--dry-run", "--retention-days", "7", "--force")
    assert code == 0
    assert "-default_days = 30" in out
    assert "+default_days = 7" in out
    assert "config.toml.bak-<time>" in out
    assert list(tree(home.root)) == ["config.toml"]


@pytest.mark.hazard(63)
def test_no_client_is_attached_to_a_random_port(hyp: Hyp, user: Path, home: Home) -> None:
    home.root.mkdir(mode=0o700)
    home.config.write_text('[gateway]\nlisten = "127.0.0.1:0"\n')
    code, out, _ = hyp("setup", "--attach", "--dry-run", "--json")
    result = steps(json.loads(out))
    assert (code, result["claude"]["status"], result["codex"]["status"]) == (0, "skipped", "skipped")
    assert result["claude"]["later"][0].startswith("hyp config set gateway.listen 127.0.0.1:")
    before = tree(user)
    for more in ((), ("--dry-run",)):
        code, out, _ = hyp("client", "attach", "claude", "--json", *more)
        assert (code, json.loads(out)["error"]["kind"]) == (3, "gateway_address")
    assert tree(user) == before


def test_the_span_of_the_import_is_recorded_if_telemetry_is_enabled(
    hyp: Hyp, user: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telemetry is the only thing that a dry run writes, because the user enabled it."""
    from hypaware import telemetry

    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    monkeypatch.setenv("DEV_RUN_ID", "dry")
    monkeypatch.setattr(telemetry, "_process_run_id", None)
    try:
        assert hyp("setup", "--dry-run", "--client", "claude", "--retention-days", "30")[0] == 0
    finally:
        telemetry.close()
    assert [path.name for path in home.root.iterdir()] == ["telemetry"]
    spans = [json.loads(line) for path in home.telemetry.glob("traces-*") for line in path.read_text().splitlines()]
    (about,) = [span["attributes"] for span in spans if span["name"] == "walkthrough.backfill"]
    assert {name: about[name] for name in about if name != "until"} == {
        "provider_count": 1,
        "providers": "claude",
        "dry_run": True,
        "interactive": False,
        "consent": True,
        "consent_cancelled": False,
        "retention_days": 30,
        "providers_run": 1,
        "rows_written": 0,
        "status": "ok",
        "dev_run_id": "dry",
        "hyp_component": "walkthrough",
        "hyp_operation": "walkthrough.backfill",
    }
    assert about["until"].endswith("Z")
