"""The real Claude Code and Codex, not attached: the daemon records their sessions from the transcripts they write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.spool import reader
from tests.support.client_script import LAST_WORD, Script
from tests.support.history import readable, rows_of, usage
from tests.support.ports import held_port
from tests.support.processes import eventually
from tests.support.raw_exchanges import EXCHANGES, MESSAGES
from tests.support.real_clients import CLAUDE, CODEX, Client, User, running_daemon, user_of

pytestmark = pytest.mark.real_clients


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


def spooled_parts(user: User) -> dict[str, dict[str, object]]:
    rows = map(readable, reader.read_spooled_rows(Home(user.hyp.home), MESSAGES))
    return {row["part_id"]: row for row in rows}


@pytest.mark.hazard(114)
@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_real_session_is_spooled_immediately_and_each_part_is_once_in_the_lake(
    client: Client, tmp_path: Path, port: int
) -> None:
    enabled = f"[clients.{client.name}]\nenabled = true\n"
    with user_of(client, tmp_path, Script().answer) as user, running_daemon(user, port, enabled):
        for words in (client.first, client.then):
            assert LAST_WORD in user.says(*words)
            (path,) = user.folder.glob(client.transcripts)
            written = rows_of(client.provider, path, quiet=True)[0]
            eventually(lambda: spooled_parts(user).keys() == {row["part_id"] for row in written})  # noqa: B023
        assert not (user.folder / ".claude/settings.json").exists()
    assert list(reader.read_spooled_rows(Home(user.hyp.home), EXCHANGES)) == []
    assert usage(spooled_parts(user).values()) == usage(written)
    try:
        report = user.hyp.ok("backfill", client.name, **user.environment)
        assert [each["rows_written"] for each in report["providers"]] == [0]
        user.hyp.ok("flush", **user.environment)
        counted = user.hyp.query(f"SELECT count(*) AS parts, count(DISTINCT part_id) AS ids FROM {MESSAGES}")
        assert counted == [{"parts": len(written), "ids": len(written)}]
    finally:
        user.hyp.run("engine", "stop")
