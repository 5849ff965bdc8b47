"""`hyp mcp` with an engine: SQL over the lake, without the sessions that must not leave the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import TextContent

from tests.support.command import HYP, Hyp
from tests.support.processes import PATIENCE
from tests.support.real_clients import CLAUDE, CODEX, Client, user_of
from tests.support.rows import DATASET, row
from tests.support.upstream_stub import in_dialect


def ask_sql(hyp: Hyp, *statements: str) -> list[tuple[bool, str]]:
    server = StdioServerParameters(command=str(HYP), args=["mcp"], env=hyp.environment())
    answers: list[tuple[bool, str]] = []

    async def run() -> None:
        with anyio.fail_after(PATIENCE):
            async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
                await session.initialize()
                for statement in statements:
                    result = await session.call_tool("sql", {"statement": statement, "limit": 3})
                    (content,) = result.content
                    assert isinstance(content, TextContent)
                    answers.append((bool(result.is_error), content.text))

    anyio.run(run)
    return answers


def rows_of(answer: tuple[bool, str]) -> list[dict[str, Any]]:
    is_error, text = answer
    assert not is_error, text
    found: list[dict[str, Any]] = json.loads(text)["rows"]
    return found


def test_sql_sees_all_sessions_but_the_private_ones(hyp: Hyp, tmp_path: Path) -> None:
    for name in ("open", "local"):
        (tmp_path / name).mkdir()
    (tmp_path / "local" / ".hypignore").write_text("local-only\n")
    rows = [row(at, session_id="open", cwd=str(tmp_path / "open")) for at in range(5)]
    rows += [row(at, session_id="local", cwd=str(tmp_path / "local")) for at in range(5, 8)]
    hyp.ingest(rows)
    hyp.ok("flush")

    counted, listed, dropped, other = ask_sql(
        hyp,
        f"SELECT session_id, count(*) AS n FROM {DATASET} GROUP BY 1",
        f"SELECT content_text FROM {DATASET} ORDER BY 1",
        f"DROP TABLE {DATASET}",
        "SELECT count(*) FROM ai_gateway_exchanges",
    )

    assert rows_of(counted) == [{"session_id": "open", "n": 5}]
    assert json.loads(counted[1])["withheld_sessions"]["local_only"] == 1
    assert [each["content_text"] for each in rows_of(listed)] == [f"text of message {at}" for at in range(3)]
    assert json.loads(listed[1])["truncated"]
    assert [is_error for is_error, _ in (dropped, other)] == [True, True]


@pytest.mark.real_clients
@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_the_real_clients_know_the_installed_server(client: Client, tmp_path: Path) -> None:
    with user_of(client, tmp_path, in_dialect) as user:
        hyp, where = user.hyp, user.environment
        hyp.ingest([row(1)])
        user.says("mcp", "list")

        assert hyp.ok("mcp", "install", client.name, **where)["changed"]
        listed = user.says("mcp", "list")
        assert not hyp.ok("mcp", "install", client.name, **where)["changed"]
        assert hyp.ok("mcp", "install", client.name, "--uninstall", **where)["changed"]

        line = next(line for line in listed.splitlines() if line.startswith("hypaware"))
        assert f"{HYP}" in line
        # Claude Code starts the server to see whether it answers.
        assert "Connected" in line if client is CLAUDE else "enabled" in line
        assert "hypaware" not in user.says("mcp", "list")
