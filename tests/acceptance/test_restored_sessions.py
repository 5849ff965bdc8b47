"""Sessions that `hyp restore-session` gave back, and the lake that recorded them: no row is added or changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hypaware.home import cache_dir
from tests.support import claude_transcripts, codex_rollouts
from tests.support.command import Hyp
from tests.support.raw_exchanges import MESSAGES


def test_an_import_of_all_restored_samples_adds_nothing(tmp_path: Path) -> None:
    """The rows are in files that a compaction has written again after they were indexed."""
    hyp, user = Hyp(tmp_path / "hyp"), tmp_path / "user"
    folders = {"CLAUDE_CONFIG_DIR": str(user / ".claude"), "CODEX_HOME": str(user / ".codex")}
    environment = {"HYP_CACHE": str(cache_dir()), "HOME": str(user), **folders}
    claude_transcripts.unpacked(user / ".claude/projects")
    rollouts = user / ".codex/sessions"
    rollouts.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (rollouts / name).write_bytes(codex_rollouts.sample(name))
    for path in user.rglob("*.jsonl"):
        # A file that was written to just now may still grow.
        os.utime(path, (path.stat().st_ctime - 3600,) * 2)
    query = f"SELECT * FROM {MESSAGES} ORDER BY part_id"
    try:
        assert hyp.run("backfill", "claude", "codex", **environment).code == 0
        before = hyp.query(query)
        sessions = [each["session_id"] for each in hyp.ok("sessions")["sessions"]]
        hyp.ok("maintain", "--compact-only")
        shutil.rmtree(user)
        given_back = 0
        for session in sessions:
            done = hyp.run("restore-session", session, "--json", **environment)
            given_back += done.code == 0
            assert done.code == 0 or done.json["error"]["kind"] == "no_content", done.out

        for path in user.rglob("*.jsonl"):
            os.utime(path, (path.stat().st_ctime - 3600,) * 2)
        reports = hyp.ok("backfill", "claude", "codex", **environment)["providers"]
        assert [(each["status"], each["rows_written"]) for each in reports] == [("ok", 0), ("ok", 0)]
        assert hyp.query(query) == before
        assert given_back > 20
        audit = hyp.run("verify", "--json")
        assert audit.code == 0, audit.out
    finally:
        hyp.run("engine", "stop")
