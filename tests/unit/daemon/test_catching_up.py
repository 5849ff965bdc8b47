"""The daemon imports new transcript lines of chosen clients, and of no others."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hypaware.config import ClientConfig, Config
from hypaware.daemon import condition
from hypaware.daemon.catching_up import is_chosen
from hypaware.engine import client
from hypaware.home import Home
from hypaware.spool.reader import waiting
from tests import claude_files, light_life
from tests.delivery_jobs import imports_of
from tests.live_gateway import Wire, post
from tests.processes import eventually
from tests.rows import rows
from tests.standing_home import write_config
from tests.upstream_stub import UpstreamStub

if TYPE_CHECKING:
    from tests.unit.daemon.conftest import DaemonOfTests


@pytest.fixture(autouse=True)
def transcript(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return claude_files.write(tmp_path / "claude/projects/-work/one.jsonl", claude_files.turns("one", 2))


def declare(daemon: DaemonOfTests, text: str) -> None:
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, f'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n{text}')


def told(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = condition.read(home).get("catch_up", {})
    return found


def let_looks_pass(home: Home, count: int = 3) -> None:
    for _ in range(count):
        before = told(home).get("next_look")
        eventually(lambda seen=before: told(home).get("next_look") not in (None, seen))  # type: ignore[misc]


def test_transcript_of_a_chosen_client_is_imported_automatically(daemon: DaemonOfTests, tmp_path: Path) -> None:
    declare(daemon, '[flush]\ncold_interval = "2m"\n[clients.claude]\nenabled = true\n')
    with daemon.running() as running:
        eventually(lambda: told(daemon.home).get("last_status") == "ok")
        assert "claude: imported 3 rows of history" in running.log
        (daemon.home.root / "fail-backfill").touch()
        eventually(lambda: told(daemon.home).get("last_status") == "failed")
        let_looks_pass(daemon.home)
        assert running.log.count("transcript import failed: claude: nobody can read it") == 1, "it is logged once"
        running.stop()
    asked = imports_of(daemon.home)[0]
    assert (asked["providers"], asked["patient"]) == (["claude"], True)
    assert asked["environment"]["CLAUDE_CONFIG_DIR"] == str(tmp_path / "claude")


def test_rows_older_than_history_from_are_not_imported(daemon: DaemonOfTests) -> None:
    """Regression: declined history was imported and delivered a minute after setup."""
    declare(daemon, '[flush]\ncold_interval = "1m"\n[clients.claude]\nhistory_from = 2020-01-02\n')
    with daemon.running() as running:
        eventually(lambda: told(daemon.home).get("last_status") == "ok")
        running.stop()
    # This import finds nothing, so another one may have run in between.
    assert {asked["since"] for asked in imports_of(daemon.home)} == {"2020-01-02T00:00:00.000000Z"}


def test_engine_is_not_started_without_a_chosen_client_or_new_lines(daemon: DaemonOfTests) -> None:
    declare(daemon, '[flush]\ncold_interval = "1m"\n')
    with daemon.running() as running:
        let_looks_pass(daemon.home, 2)
        for text in ("[clients.claude]\nenabled = false\n", "[clients.codex]\nenabled = true\n"):
            before = running.log.count("config was reloaded")
            declare(daemon, f'[flush]\ncold_interval = "1m"\n{text}')
            eventually(lambda seen=before: running.log.count("config was reloaded") > seen)  # type: ignore[misc]
            let_looks_pass(daemon.home, 2)
        running.stop()
    assert imports_of(daemon.home) == []
    assert not daemon.home.engine.exists()


def test_transcript_is_imported_soon_after_live_rows_while_the_engine_runs(
    daemon: DaemonOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    with UpstreamStub() as stub:
        monkeypatch.setenv("SSL_CERT_FILE", str(stub.ca_file))
        upstream = f'[[gateway.upstreams]]\nname = "stub"\nbase_url = "{stub.url}"\nprovider = "anthropic"\n'
        declare(daemon, upstream + '[flush]\ncold_interval = "30d"\n[clients.claude]\nenabled = true\n')
        with daemon.running() as running:
            eventually(lambda: len(imports_of(daemon.home)) == 1)
            host, _, port = condition.read(daemon.home)["gateway"]["listen"].rpartition(":")
            with Wire(socket.create_connection((host, int(port)), timeout=60)) as wire:
                wire.send(post("/claude/v1/messages", b'{"messages": [{"role": "user", "content": "hello"}]}'))
                assert wire.answer()[0].startswith(b"HTTP/1.1 200")
            eventually(lambda: len(imports_of(daemon.home)) == 2)
            running.stop()


def test_attached_client_is_chosen_unless_the_config_disables_it(home: Home) -> None:
    enabled, disabled = Config(clients={"claude": ClientConfig(True)}), Config(clients={"claude": ClientConfig(False)})
    assert [is_chosen(home, config, "claude") for config in (Config(), enabled, disabled)] == [False, True, False]
    (home.root / "clients/claude").mkdir(parents=True)
    (home.root / "clients/claude/attach.json").touch()
    assert [is_chosen(home, config, "claude") for config in (Config(), enabled, disabled)] == [True, True, False]


def test_stopped_engine_is_started_for_a_full_spool_but_not_for_a_few_rows(daemon: DaemonOfTests) -> None:
    declare(daemon, '[flush]\ncold_interval = "30d"\nmax_rows = 10\n[maintain]\ninterval = "1m"\n')
    light_life.append(daemon.home, rows(1))

    def waits() -> int:
        return waiting(daemon.home, light_life.DATASET).rows

    with daemon.running() as running:
        eventually(lambda: waits() == 0)
        client.stop(daemon.home)
        light_life.append(daemon.home, rows(2, start=1))
        for _ in range(6):
            look = condition.read(daemon.home)["maintain"]["next_look"]
            eventually(lambda seen=look: condition.read(daemon.home)["maintain"]["next_look"] != seen)  # type: ignore[misc]
        assert (waits(), client.status(daemon.home)["state"]) == (2, "stopped")
        light_life.append(daemon.home, rows(10, start=3))
        eventually(lambda: waits() == 0)
        running.stop()
