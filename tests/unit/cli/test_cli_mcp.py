"""`hyp mcp install` as a command: what it prints, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware import Spool
from hypaware.home import Home
from tests.support.rows import DATASET, row
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the settings file of a Claude Code that this test owns."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    path = tmp_path / "claude" / ".claude.json"
    path.parent.mkdir()
    path.write_text('{\n  "a": 1\n}\n')
    return path


@pytest.fixture
def recorded(home: Home) -> None:
    Spool(home.root).append(DATASET, [row(1)])


@pytest.mark.usefixtures("recorded")
def test_install_and_uninstall_say_what_they_did(hyp: Run, home: Home, claude: Path) -> None:
    before = claude.read_text()

    code, diff, _ = hyp("mcp", "install", "claude", "--dry-run")
    assert (code, claude.read_text()) == (0, before)
    assert '+    "hypaware": {' in diff
    assert "claude now starts HYP_HOME=" in hyp("mcp", "install", "claude")[1]
    assert "claude already starts" in hyp("mcp", "install", "claude")[1]
    entry = json.loads(claude.read_text())["mcpServers"]["hypaware"]
    assert entry["env"] == {"HYP_HOME": str(home.root)}
    assert "no longer has the server" in hyp("mcp", "install", "claude", "--uninstall")[1]
    assert "does not have the server" in hyp("mcp", "install", "claude", "--uninstall")[1]
    assert claude.read_text() == before


@pytest.mark.usefixtures("recorded")
def test_the_document_names_the_file_and_the_command(hyp: Run, claude: Path) -> None:
    document = json.loads(hyp("mcp", "install", "claude", "--include-local-only", "--json")[1])

    assert document["path"] == str(claude)
    assert document["changed"] is True
    assert document["command"].endswith("/hyp mcp --include-local-only")


@pytest.mark.usefixtures("recorded")
def test_an_unknown_client_names_the_nearest(hyp: Run) -> None:
    code, _, err = hyp("mcp", "install", "claud")

    assert code == 1
    assert "Did you mean claude?" in err


def test_without_a_home_nothing_is_written(hyp: Run, home: Home, claude: Path) -> None:
    before = claude.read_text()

    code, _, err = hyp("mcp", "install", "claude")

    assert (code, claude.read_text(), home.root.exists()) == (3, before, False)
    assert "hyp setup" in err


@pytest.mark.usefixtures("recorded")
def test_without_the_sdk_nothing_is_written(hyp: Run, claude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = claude.read_text()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mcp" else find_spec(name))

    code, _, err = hyp("mcp", "install", "claude")

    assert (code, claude.read_text()) == (3, before)
    assert "try: pip install 'hypaware[mcp]'" in err


@pytest.mark.usefixtures("recorded")
def test_the_record_of_the_server_is_not_taken_for_an_attached_client(hyp: Run) -> None:
    assert hyp("mcp", "install", "claude")[0] == 0

    code, out, err = hyp("client", "status", "--json")

    assert (code, err) == (0, "")
    assert {each["state"] for each in json.loads(out)["clients"]} <= {"detached", "absent", "not attached"}
