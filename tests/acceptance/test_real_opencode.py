"""The real OpenCode, attached with `hyp client attach`, in each of its dialects. Tested with OpenCode 1.18.33."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.spool import reader
from tests.support.client_script import LAST_WORD
from tests.support.history import readable, rows_of
from tests.support.opencode_script import DELEGATE, MODELS, OPENCODE, config_path, opencode_user, speak
from tests.support.ports import held_port
from tests.support.raw_exchanges import EXCHANGES, MESSAGES
from tests.support.real_clients import attach, detach, running_daemon

pytestmark = pytest.mark.real_clients

PARTS = f"SELECT part_id FROM {MESSAGES} WHERE provider_type IS DISTINCT FROM 'gateway' ORDER BY part_id"


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


@pytest.mark.parametrize("provider", MODELS)
def test_live_rows_meet_those_of_the_database_and_detach_restores_the_config(
    provider: str, tmp_path: Path, port: int
) -> None:
    with opencode_user(tmp_path, speak) as user:
        before = config_path(user).read_bytes()
        with running_daemon(user, port):
            attach(user)
            assert LAST_WORD in user.says("run", "-m", MODELS[provider], "Say what the command says.")
            assert LAST_WORD in user.says("run", "--continue", "-m", MODELS[provider], DELEGATE)
            detach(user)
            assert config_path(user).read_bytes() == before
        home = Home(user.hyp.home)
        raw = list(reader.read_spooled_rows(home, EXCHANGES))
        live = list(map(readable, reader.read_spooled_rows(home, MESSAGES)))
        assert {row["provider"] for row in raw} == {provider}
        assert all(row["decoded"] for row in raw)
        recorded = [row for row in live if row["attributes"]["gateway"]["source"] == "live"]
        assert {row["cwd"] for row in recorded} == {str(user.folder / "project")}
        assert len({row["session_id"] for row in recorded}) == 1
        assert len({row.get("agent_id") for row in recorded}) == 2, "the subagent is a thread of the session"
        try:
            (imported,) = user.hyp.ok("backfill", "opencode", **user.environment)["providers"]
            assert imported["status"] == "ok"
            for command in (("flush",), ("maintain", "--compact-only")):
                user.hyp.ok(*command, **user.environment)
            native = rows_of(OPENCODE.provider, user.folder / OPENCODE.transcripts, quiet=True)[0]
            assert [row["part_id"] for row in user.hyp.query(PARTS)] == sorted(row["part_id"] for row in native)
            assert len(native) > 8
        finally:
            user.hyp.run("engine", "stop")


def test_a_client_continues_after_its_daemon_died(tmp_path: Path, port: int) -> None:
    with opencode_user(tmp_path, speak) as user, running_daemon(user, port, ends_with=-signal.SIGKILL) as daemon:
        attach(user)
        assert LAST_WORD in user.says(*OPENCODE.first)
        daemon.kill()
        daemon.wait()
        assert LAST_WORD in user.says(*OPENCODE.then)
        answered = user.hyp.ok("client", "status", "opencode", **user.environment)
        assert [each["state"] for each in answered["clients"]] == ["passing"]
