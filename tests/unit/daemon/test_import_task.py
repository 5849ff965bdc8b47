"""The daemon imports new transcript lines of chosen clients, and of no others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hypaware.config import ClientConfig, Config
from hypaware.daemon.tasks import is_client_chosen
from hypaware.engine import client
from hypaware.home import Home, daemon_process
from hypaware.spool.reader import summarize_spool
from tests.support import claude_files, light_home
from tests.support.daemon_home import DaemonHome, daemon_part, wait_for_checks
from tests.support.delivery_home import write_config
from tests.support.delivery_jobs import imports_of
from tests.support.live_gateway import ClientConnection, post
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import rows
from tests.support.upstream_stub import UpstreamStub


@pytest.fixture(autouse=True)
def transcript(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return claude_files.write(tmp_path / "claude/projects/-work/one.jsonl", claude_files.turns("one", 2))


def declare(daemon: DaemonHome, text: str) -> None:
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, f'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n{text}')


def test_transcript_of_a_chosen_client_is_imported_automatically(daemon: DaemonHome, tmp_path: Path) -> None:
    declare(daemon, '[flush]\ncold_interval = "2m"\n[clients.claude]\nenabled = true\n')
    with daemon.running() as running:
        eventually(lambda: daemon_part(daemon.home, "catch_up").get("last_status") == "ok")
        assert "claude: imported 3 rows of history" in running.log
        (daemon.home.root / "fail-backfill").touch()
        eventually(lambda: daemon_part(daemon.home, "catch_up").get("last_status") == "failed")
        wait_for_checks(daemon.home, "catch_up")
        assert running.log.count("transcript import failed: claude: nobody can read it") == 1, "it is logged once"
        running.stop()
    requested = imports_of(daemon.home)[0]
    assert requested["providers"] == ["claude"]
    assert requested["environment"]["CLAUDE_CONFIG_DIR"] == str(tmp_path / "claude")


def test_rows_older_than_history_from_are_not_imported(daemon: DaemonHome) -> None:
    """Regression: declined history was imported and delivered a minute after setup."""
    declare(daemon, '[flush]\ncold_interval = "1m"\n[clients.claude]\nhistory_from = 2020-01-02\n')
    with daemon.running() as running:
        eventually(lambda: daemon_part(daemon.home, "catch_up").get("last_status") == "ok")
        running.stop()
    # This import finds nothing, so another one may have run in between.
    assert {requested["since"] for requested in imports_of(daemon.home)} == {"2020-01-02T00:00:00.000000Z"}


def test_engine_is_not_started_without_a_chosen_client_or_new_lines(daemon: DaemonHome) -> None:
    declare(daemon, '[flush]\ncold_interval = "1m"\n')
    with daemon.running() as running:
        wait_for_checks(daemon.home, "catch_up", 2)
        for text in ("[clients.claude]\nenabled = false\n", "[clients.codex]\nenabled = true\n"):
            before = running.log.count("config was reloaded")
            declare(daemon, f'[flush]\ncold_interval = "1m"\n{text}')
            eventually(lambda seen=before: running.log.count("config was reloaded") > seen)  # type: ignore[misc]
            wait_for_checks(daemon.home, "catch_up", 2)
        running.stop()
    assert imports_of(daemon.home) == []
    assert not daemon.home.engine.exists()


def test_transcript_is_imported_soon_after_live_rows_while_the_engine_runs(
    daemon: DaemonHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with UpstreamStub() as stub:
        monkeypatch.setenv("SSL_CERT_FILE", str(stub.ca_file))
        upstream = f'[[gateway.upstreams]]\nname = "stub"\nbase_url = "{stub.url}"\nprovider = "anthropic"\n'
        declare(daemon, upstream + '[flush]\ncold_interval = "30d"\n[clients.claude]\nenabled = true\n')
        with daemon.running() as running:
            eventually(lambda: len(imports_of(daemon.home)) == 1)
            host, _, port = daemon_process.read_daemon_status(daemon.home)["gateway"]["listen"].rpartition(":")
            with ClientConnection(socket.create_connection((host, int(port)), timeout=PATIENCE)) as wire:
                wire.send(post("/claude/v1/messages", b'{"messages": [{"role": "user", "content": "hello"}]}'))
                assert wire.answer()[0].startswith(b"HTTP/1.1 200")
            eventually(lambda: len(imports_of(daemon.home)) == 2)
            running.stop()


def test_attached_client_is_chosen_unless_the_config_disables_it(home: Home) -> None:
    enabled, disabled = Config(clients={"claude": ClientConfig(True)}), Config(clients={"claude": ClientConfig(False)})
    assert [is_client_chosen(home, config, "claude") for config in (Config(), enabled, disabled)] == [
        False,
        True,
        False,
    ]
    (home.root / "clients/claude").mkdir(parents=True)
    (home.root / "clients/claude/attach.json").touch()
    assert [is_client_chosen(home, config, "claude") for config in (Config(), enabled, disabled)] == [True, True, False]


def test_stopped_engine_is_started_for_a_full_spool_but_not_for_a_few_rows(daemon: DaemonHome) -> None:
    declare(daemon, '[flush]\ncold_interval = "30d"\nmax_rows = 10\n[maintain]\ninterval = "1m"\n')
    light_home.append(daemon.home, rows(1))

    def waits() -> int:
        return summarize_spool(daemon.home, light_home.DATASET).rows

    with daemon.running() as running:
        eventually(lambda: waits() == 0)
        client.stop_engine(daemon.home)
        light_home.append(daemon.home, rows(2, start=1))
        for _ in range(6):
            wait_for_checks(daemon.home, "maintain", 1)
        assert (waits(), client.engine_status(daemon.home)["state"]) == (2, "stopped")
        light_home.append(daemon.home, rows(10, start=3))
        eventually(lambda: waits() == 0)
        running.stop()
