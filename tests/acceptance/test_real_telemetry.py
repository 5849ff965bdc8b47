"""The telemetry of the real Claude Code and Codex, with the settings of docs/telemetry.md, into the OTLP receiver.

Tested with Claude Code 2.1.197 and Codex 0.169.0; `tests.support.real_clients` says how the clients are run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hypaware.home import Home, daemon_process
from tests.support.client_script import LAST_WORD, Script
from tests.support.otlp import spooled_rows
from tests.support.processes import eventually
from tests.support.real_clients import CLAUDE, CODEX, user_of

pytestmark = pytest.mark.real_clients

DOCS = Path(__file__).parents[2] / "docs" / "telemetry.md"
CONFIG = """version = 1
[gateway]
listen = "127.0.0.1:0"
[otlp]
listen = "127.0.0.1:0"
[flush]
interval = "1h"
cold_interval = "1h"
"""


def documented(language: str) -> str:
    """Return the settings that the documentation gives, in this language."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(block)


def receiver_of(home: Path) -> str:
    return str(daemon_process.read_daemon_status(Home(home)).get("otlp", {}).get("listen", ""))


def test_claude_code_sends_the_events_and_metrics_of_a_session(tmp_path: Path) -> None:
    with user_of(CLAUDE, tmp_path, Script().answer) as user:
        user.hyp.home.mkdir(exist_ok=True)
        (user.hyp.home / "config.toml").write_text(CONFIG)
        with user.hyp.start("daemon", "run", **user.environment) as daemon:
            try:
                eventually(lambda: receiver_of(user.hyp.home))
                settings = json.loads(documented("json"))["env"]
                settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{receiver_of(user.hyp.home)}"
                (user.folder / ".claude" / "settings.json").write_text(json.dumps({"env": settings}))
                assert LAST_WORD in user.says(*CLAUDE.first)
                home = Home(user.hyp.home)
                eventually(lambda: spooled_rows(home, "otel_metrics"))
                logs, points = spooled_rows(home, "otel_logs"), spooled_rows(home, "otel_metrics")
            finally:
                daemon.terminate()
    transcripts = [path.stem for path in user.folder.glob(CLAUDE.transcripts)]
    assert {row["event_name"] for row in logs} >= {"user_prompt", "api_request", "tool_result"}
    assert {row["session_id"] for row in logs} <= set(transcripts)
    assert {row["client_name"] for row in (*logs, *points)} == {"claude"}
    assert {row["name"] for row in points} >= {"claude_code.token.usage", "claude_code.cost.usage"}


def test_codex_sends_the_events_of_a_session(tmp_path: Path) -> None:
    with user_of(CODEX, tmp_path, Script().answer) as user:
        user.hyp.home.mkdir(exist_ok=True)
        (user.hyp.home / "config.toml").write_text(CONFIG)
        with user.hyp.start("daemon", "run", **user.environment) as daemon:
            try:
                eventually(lambda: receiver_of(user.hyp.home))
                settings = documented("toml").replace("127.0.0.1:4318", receiver_of(user.hyp.home))
                config = user.folder / ".codex" / "config.toml"
                before = config.read_text() if config.exists() else ""
                config.write_text(f"{before}\n{settings}")
                assert LAST_WORD in user.says(*CODEX.first)
                home = Home(user.hyp.home)
                eventually(lambda: spooled_rows(home, "otel_logs"))
                logs = spooled_rows(home, "otel_logs")
            finally:
                daemon.terminate()
    assert {row["client_name"] for row in logs} == {"codex"}
    assert "codex.user_prompt" in {row["event_name"] for row in logs}
    (session,) = {row["session_id"] for row in logs if row.get("session_id")}
    assert any(session in path.name for path in user.folder.glob(CODEX.transcripts))
