"""`hyp status` beside a real daemon: what it says while that runs, and when it was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypaware import lock_file
from hypaware.capture import handover
from hypaware.home import Home
from tests.command import Hyp
from tests.ports import held_port
from tests.processes import eventually


@contextmanager
def gateway_port(home: Home) -> Iterator[int]:
    """For the home's gateway; whoever keeps it open for the home is ended."""
    path = handover.lock_path(home)
    with held_port() as port:
        try:
            yield port
        finally:
            if lock_file.is_taken(path) and (pid := lock_file.holder(path)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                eventually(lambda: not lock_file.is_taken(path))


def standing(found: dict[str, Any]) -> tuple[str, int | None, str, set[str]]:
    """Who is asked for it has a second or two to answer, which is not much on a busy machine."""
    daemon, kinds = found["daemon"], {each["kind"] for each in found["diagnostics"]}
    return daemon["state"], daemon.get("pid"), found["clients"][0]["state"], kinds


def test_a_daemon_is_seen_at_work_and_missed_when_it_was_killed(tmp_path: Path) -> None:
    hyp, user = Hyp(tmp_path / "home"), tmp_path / "user"
    (user / ".claude").mkdir(parents=True)
    mine = {"HOME": str(user), "CLAUDE_CONFIG_DIR": str(user / ".claude"), "HYP_CACHE": str(tmp_path / "cache")}
    assert hyp.ok("status", **mine)["overall"] == "down"
    assert not hyp.home.exists()

    with gateway_port(Home(hyp.home)) as port:
        hyp.home.mkdir(mode=0o700)
        (hyp.home / "config.toml").write_text(
            f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n[clients.claude]\n'
        )
        with hyp.start("daemon", "run", **mine) as daemon:
            try:
                eventually(lambda: hyp.ok("status", **mine)["sources"][0]["answered_by"] == "gateway")
                hyp.ok("client", "attach", "claude", **mine)
                # Told from this machine's empty cache: nothing else is wrong.
                expected = ("running", daemon.pid, "attached", {"client_unseen", "engine_not_installed"})
                eventually(lambda: standing(hyp.ok("status", **mine)) == expected)
            finally:
                daemon.kill()
        missed = {"daemon_down", "client_unrecorded", "engine_not_installed"}
        eventually(lambda: standing(hyp.ok("status", **mine)) == ("stopped", None, "passing", missed))
        found = hyp.ok("status", **mine)
        assert (found["overall"], found["diagnostics"][0]["kind"]) == ("down", "daemon_down")
        assert hyp.run("status", "--check", **mine).code == 1
