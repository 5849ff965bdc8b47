"""`hyp status` with a real daemon, while it runs and after it was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypaware.gateway import handover
from hypaware.home import Home, locks
from tests.support.command import Hyp
from tests.support.ports import held_port
from tests.support.processes import eventually


@contextmanager
def gateway_port(home: Home) -> Iterator[int]:
    """The port of the home's gateway; its fallback listener is stopped afterwards."""
    path = handover.fallback_lock_path(home)
    with held_port() as port:
        try:
            yield port
        finally:
            if locks.is_locked(path) and (pid := locks.lock_holder(path)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                eventually(lambda: not locks.is_locked(path))


def standing(found: dict[str, Any]) -> tuple[str, int | None, str, set[str]]:
    """Return the status. Probed processes have a second or two to answer, which is short on a busy machine."""
    daemon, kinds = found["daemon"], {each["kind"] for each in found["diagnostics"]}
    return daemon["state"], daemon.get("pid"), found["clients"][0]["state"], kinds


def test_status_shows_a_running_daemon_and_reports_a_killed_one(tmp_path: Path) -> None:
    hyp, user = Hyp(tmp_path / "home"), tmp_path / "user"
    (user / ".claude" / "projects").mkdir(parents=True)
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
                # This machine's cache is empty; nothing else is wrong.
                expected = ("running", daemon.pid, "attached", {"client_unseen", "engine_not_installed"})
                eventually(lambda: standing(hyp.ok("status", **mine)) == expected)
            finally:
                daemon.kill()
        missed = {"daemon_down", "client_unrecorded", "engine_not_installed"}
        eventually(lambda: standing(hyp.ok("status", **mine)) == ("stopped", None, "passing", missed))
        found = hyp.ok("status", **mine)
        assert (found["overall"], found["diagnostics"][0]["kind"]) == ("down", "daemon_down")
        assert hyp.run("status", "--check", **mine).code == 1
