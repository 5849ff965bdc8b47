"""The hooks of an attached Claude Code, run by the real program: unnoticed, and of use after a reboot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.gateway import handover
from hypaware.home import Home, locks
from hypaware.home.session_context import all_session_columns
from tests.support.client_script import LAST_WORD, Script
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually, wait_until_gone
from tests.support.real_clients import CLAUDE, attach, attached, running_daemon, user_of

pytestmark = pytest.mark.real_clients


@pytest.fixture
def port() -> Iterator[int]:
    """The gateway's port."""
    with held_port() as found:
        yield found


@pytest.mark.hazard(111)
def test_hooks_print_nothing_and_leave_a_long_prompt_unread(tmp_path: Path, port: int) -> None:
    streamed = ("--output-format", "stream-json", "--verbose", *CLAUDE.first[:-1], "x" * 100_000)
    with attached(CLAUDE, tmp_path, Script().answer, port) as user:
        messages = [json.loads(line) for line in user.says(*streamed).splitlines()]
        noted = all_session_columns(user.hyp.home)
    assert (messages[0]["type"], messages[0]["subtype"]) == ("system", "init"), "no hook is reported before it"
    assert not [each for each in messages if str(each.get("subtype")).startswith("hook")]
    assert messages[-1]["result"] == LAST_WORD
    assert {session: columns["cwd"] for session, columns in noted.items()} == {
        messages[0]["session_id"]: str(user.folder / "project")
    }


@pytest.mark.hazard(111)
def test_a_prompt_after_a_reboot_opens_the_address_again(tmp_path: Path, port: int) -> None:
    with user_of(CLAUDE, tmp_path, Script().answer) as user, running_daemon(user, port) as daemon:
        attach(user)
        home = Home(user.hyp.home)
        eventually(lambda: locks.lock_holder(handover.fallback_lock_path(home)))
        fallback = locks.lock_holder(handover.fallback_lock_path(home))
        assert fallback is not None
        # As after a power cut: daemon and fallback are gone, and a file says otherwise.
        reader = (home.run / "hook-notes").read_text()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=PATIENCE)
        os.kill(fallback, signal.SIGKILL)
        wait_until_gone(fallback)
        (home.run / "hook-notes").write_text(reader)
        environment = user.environment
        said = subprocess.run(
            [user.program, *CLAUDE.first],
            env=environment,
            cwd=user.folder / "project",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (said.returncode, LAST_WORD in said.stdout) == (0, True), said
        assert locks.is_locked(handover.fallback_lock_path(home))
        eventually(lambda: all_session_columns(home.root))
