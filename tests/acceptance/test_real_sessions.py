"""Sessions of the real clients that the gateway saw only in part: their rows equal those of an import alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.spool import reader
from tests.support.client_script import LAST_WORD, Script
from tests.support.command import Hyp
from tests.support.history import readable, rows_of
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually
from tests.support.raw_exchanges import MESSAGES
from tests.support.real_clients import CLAUDE, CODEX, NOT_FOLLOWED, User, attach, running_daemon, user_of

pytestmark = pytest.mark.real_clients

REMOTE = "https://example.com/shop.git"
TOKENS = "sum(get_json_object(attributes, '$.usage.{}'))"
FACTS = "part_id, message_created_at, git_branch, git_remote, head_sha, cwd"


def make_repository(folder: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for args in (("init", "-q", "-b", "trunk"), ("remote", "add", "origin", REMOTE)):
        subprocess.run(["git", "-C", str(folder), *args], check=True)
    subprocess.run(["git", "-C", str(folder), *author, "commit", "-q", "--allow-empty", "-m", "begin"], check=True)


def import_codex(hyp: Hyp, user: User) -> None:
    report = hyp.ok("backfill", "codex", **{**user.environment, "HYP_HOME": str(hyp.home)})
    assert [each["status"] for each in report["providers"]] == ["ok"]
    hyp.ok("maintain", "--compact-only")


def followed_parts(hyp: Hyp) -> set[str]:
    """Return the parts in the spool that did not come through the gateway."""
    rows = map(readable, reader.read_spooled_rows(Home(hyp.home), MESSAGES))
    return {row["part_id"] for row in rows if row["attributes"]["gateway"]["source"] != "live"}


def count_tokens(hyp: Hyp) -> dict[str, int]:
    names = ("input_tokens", "output_tokens", "total_tokens")
    (found,) = hyp.query(f"SELECT {', '.join(f'{TOKENS.format(name)} {name}' for name in names)} FROM {MESSAGES}")
    return found


@pytest.mark.hazard(101)
@pytest.mark.parametrize("recorded_by", ["gateway and follow", "gateway, then import"])
def test_a_codex_session_that_was_recorded_in_parts_has_the_tokens_and_facts_of_its_rollout(
    recorded_by: str, tmp_path: Path
) -> None:
    """Attached after the first turn, the daemon stopped during the third, resumed for the fourth."""
    both, alone = Hyp(tmp_path / "hyp"), Hyp(tmp_path / "alone")
    is_followed = "follow" in recorded_by
    settings = "" if is_followed else NOT_FOLLOWED.format(client="codex")
    try:
        with held_port() as port, user_of(CODEX, tmp_path, Script().answer) as user:
            make_repository(user.folder / "project")
            assert LAST_WORD in user.says(*CODEX.first)
            with running_daemon(user, port, settings):
                attach(user)
                assert LAST_WORD in user.says(*CODEX.then)
            assert LAST_WORD in user.says(*CODEX.then)
            with running_daemon(user, port, settings):
                attach(user)
                assert LAST_WORD in user.says(*CODEX.then)
                (path,) = user.folder.glob(CODEX.transcripts)
                written = {row["part_id"] for row in rows_of(CODEX.provider, path, quiet=True)[0]}
                if is_followed:
                    eventually(lambda: followed_parts(both) >= written)
                else:
                    assert followed_parts(both) == set()
        both.ok("flush")
        # The client finds out about the repository while it sends its first requests.
        assert {REMOTE} <= {row["git_remote"] for row in both.query(f"SELECT git_remote FROM {MESSAGES}")}
        import_codex(alone, user)
        complete = count_tokens(alone)
        # The gateway saw two of the four turns.
        assert (count_tokens(both) == complete) is is_followed
        import_codex(both, user)
        assert count_tokens(both) == complete
        query = f"SELECT {FACTS} FROM {MESSAGES} ORDER BY part_id"
        expected = alone.query(query)
        parts = {row["part_id"] for row in expected}
        assert [row for row in both.query(query) if row["part_id"] in parts] == expected
        assert {row["git_branch"] for row in expected} == {"trunk"}
        audit = both.run("verify", "--deep", "--json")
        assert audit.code == 0, audit.out
    finally:
        for hyp in (both, alone):
            hyp.run("engine", "stop")


@pytest.mark.hazard(66)
def test_a_fork_of_claude_code_shown_after_a_restart_does_not_repeat_the_first_session(tmp_path: Path) -> None:
    """The daemon that recorded the first session is gone, so nothing remembers what the fork begins with."""
    both, alone = Hyp(tmp_path / "hyp"), Hyp(tmp_path / "alone")
    forked = ("-p", "--continue", "--fork-session", "--allowedTools", "Bash", "--", "Now something else.")
    query = (
        "SELECT session_id, role, content_text, count(*) n FROM ai_gateway_messages"
        " WHERE provider_type IS DISTINCT FROM 'gateway' GROUP BY ALL ORDER BY ALL"
    )
    try:
        with held_port() as port, user_of(CLAUDE, tmp_path, Script().answer) as user:
            for turn in (CLAUDE.first, forked):
                with running_daemon(user, port):
                    attach(user)
                    # The client would send requests to the gateway through the proxy too.
                    done = subprocess.run(
                        [user.program, *turn],
                        env=user.environment | {"NO_PROXY": "127.0.0.1"},
                        cwd=user.folder / "project",
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        timeout=PATIENCE,
                        check=True,
                    )
                    assert LAST_WORD in done.stdout.decode()
        for path in (user.folder / ".claude" / "projects").rglob("*.jsonl"):
            # The last response of a file that was just written is held back.
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)
        for hyp in (both, alone):
            hyp.ok("backfill", "claude", **{**user.environment, "HYP_HOME": str(hyp.home)})
            hyp.ok("flush")
        expected = alone.query(query)
        assert len({row["session_id"] for row in expected}) == 2
        assert both.query(query) == expected
    finally:
        for hyp in (both, alone):
            hyp.run("engine", "stop")
