"""The output at the end of a setup, and the next steps of the user. Java is missing here, which is reported too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.clients import attach
from hypaware.clients.claude import CLIENT
from hypaware.home import Home

Hyp = Callable[..., tuple[int, str, str]]
ALONE = ("--no-daemon", "--no-backfill")
NO_JAVA = 3


def test_without_a_client_the_import_is_skipped_with_the_reason(hyp: Hyp, user: Path, home: Home) -> None:
    shutil.rmtree(user)
    code, out, _ = hyp("setup", "--yes", "--no-daemon", "--no-backfill", "--json")
    document = json.loads(out)
    assert (code, document["clients"], document["error"]["kind"]) == (NO_JAVA, [], "java_missing")
    (result,) = [step for step in document["steps"] if step["step"] == "import"]
    assert (result["status"], result["said"]) == ("skipped", "no client found on this machine")
    assert home.config.exists()


def test_the_token_file_is_named_until_it_exists(hyp: Hyp, user: Path, home: Home) -> None:
    flags = ("setup", *ALONE, "--export", "server", "https://hyp.example")
    code, _, err = hyp(*flags)
    assert code == NO_JAVA
    assert f"next: put the server's token into {home.root / 'server-token'}" in err
    (home.root / "server-token").write_text("t0ken")
    assert "server's token" not in hyp(*flags)[2]


def test_a_sink_with_a_new_destination_needs_adopt_or_resend(hyp: Hyp, user: Path, home: Home) -> None:
    hyp("setup", *ALONE, "--export", "local-parquet", "/one")
    _, _, err = hyp("setup", *ALONE, "--export", "local-parquet", "/two", "--force")
    assert "hyp export adopt archive, or hyp export resend archive" in err
    assert f"in {home.config}.bak-" in err


def test_a_disabled_client_that_is_still_attached_is_named(hyp: Hyp, user: Path, home: Home) -> None:
    hyp("setup", *ALONE, "--client", "codex")
    assert CLIENT.settings is not None
    attach.attach_client(home, CLIENT.settings, "http://127.0.0.1:1", {"HOME": str(user)})
    assert (
        "next: claude is disabled but still attached to the gateway: hyp client detach claude"
        in hyp("setup", *ALONE)[2]
    )


def test_a_home_that_cannot_be_created_stops_the_setup_at_once(
    hyp: Hyp, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "file" / "home"))
    code, out, err = hyp("setup", "--yes")
    assert (code, out) == (1, "")
    assert "error:" in err
    assert "ANTHROPIC_BASE_URL" not in (user / ".claude/settings.json").read_text()
