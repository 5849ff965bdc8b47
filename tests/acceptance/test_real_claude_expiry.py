"""The real Claude Code deletes the transcripts that we say it will, and no others."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hypaware.clients.claude.history import ClaudeHistory
from hypaware.config import Config
from hypaware.home import Home
from hypaware.status.session_expiry import SOON, list_expiring
from tests.support.claude_files import turns, write
from tests.support.client_script import Script
from tests.support.processes import eventually
from tests.support.real_clients import CLAUDE, user_of
from tests.support.upstream_stub import ReceivedRequest, StubResponse

pytestmark = pytest.mark.real_clients

DAY = 86_400.0


@pytest.mark.parametrize("days", [None, 7])
def test_the_client_deletes_by_the_time_of_the_file_and_by_its_setting(tmp_path: Path, days: int | None) -> None:
    script = Script()
    kept_for = days or 30
    project = tmp_path / "user/.claude/projects/-other"
    doomed = project / "doomed.jsonl"

    def answer(seen: ReceivedRequest) -> StubResponse:
        # It cleans up in the background, and ends with its answer.
        eventually(lambda: not doomed.exists())
        return script.answer(seen)

    with user_of(CLAUDE, tmp_path, answer) as user:
        if days is not None:
            (user.folder / ".claude/settings.json").write_text(json.dumps({"cleanupPeriodDays": days}))
        write(doomed, turns("doomed", 1), age=(kept_for + 0.1) * DAY)
        agent = write(project / "doomed/subagents/agent-1.jsonl", turns("doomed", 1, first=5), age=DAY)
        young = write(project / "young.jsonl", turns("young", 1), age=(kept_for - 0.1) * DAY)
        rule = ClaudeHistory().expiry(user.environment)
        assert rule is not None
        assert rule.days == kept_for
        # What it deletes now is what expired a week ago as of a week from now.
        then = datetime.now(UTC) - SOON
        (found,) = list_expiring(Home(tmp_path / "none"), Config(), user.environment, then)
        assert found.expiring == ("doomed",)
        user.says(*CLAUDE.first)
        assert [path.exists() for path in (doomed, agent, young)] == [False, False, True]
        (later,) = list_expiring(Home(tmp_path / "none"), Config(), user.environment, then + timedelta(days=1))
        assert later.expiring == ("young",)
