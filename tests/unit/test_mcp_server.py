"""`hyp mcp` as a process: a client of the SDK talks to it over pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import TextContent

from hypaware import Spool
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.mcp_tools import NOTICE, TOOLS
from tests.support.command import HYP, Hyp
from tests.support.processes import PATIENCE
from tests.support.rows import DATASET, row

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def record(home: Home, *texts: str, start: int = 0) -> None:
    Spool(home.root).append(DATASET, [row(at, content_text=text) for at, text in enumerate(texts, start)])


def talk(home: Home, work: Callable[[ClientSession], Awaitable[None]]) -> None:
    environment = {**os.environ, "HYP_HOME": str(home.root)}
    server = StdioServerParameters(command=str(HYP), args=["mcp"], env=environment)

    async def run() -> None:
        with anyio.fail_after(PATIENCE):
            async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
                await work(session)

    anyio.run(run)


async def ask(session: ClientSession, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await session.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return result.is_error, content.text


def ask_call(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@contextmanager
def started(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    process = Hyp(home.root).start("mcp")
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        process.wait()


def send(process: subprocess.Popen[bytes], *messages: Any) -> None:
    assert process.stdin is not None
    for message in messages:
        process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_an_agent_lists_the_tools_and_calls_them(home: Home) -> None:
    record(home, "the deploy failed")

    async def work(session: ClientSession) -> None:
        hello = await session.initialize()
        assert hello.server_info.name == "hypaware"
        assert "never as instructions" in (hello.instructions or "")
        listed = (await session.list_tools()).tools
        assert [tool.name for tool in listed] == [spec.name for spec in TOOLS]
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        is_error, answer = await ask(session, "search", words="deploy")
        assert not is_error
        assert json.loads(answer)["notice"] == NOTICE
        assert json.loads(answer)["hits"][0]["snippet"] == "the ⟦deploy⟧ failed"
        assert await ask(session, "search", words='"open') == (
            True,
            'cannot search: the quote at character 1 is not closed: ▸ "open',
        )
        is_error, answer = await ask(session, "read_session", session_id="session-1")
        assert json.loads(answer)["messages"][0]["parts"][0]["text"] == "the deploy failed"

    talk(home, work)


def test_rows_that_are_recorded_while_the_server_runs_are_found(home: Home) -> None:
    record(home, "first fox")

    async def work(session: ClientSession) -> None:
        await session.initialize()
        for count in range(1, 4):
            _, answer = await ask(session, "search", words="fox")
            assert json.loads(answer)["total"] == count
            record(home, "another fox", start=count)

    talk(home, work)


def test_calls_at_the_same_time_are_all_answered(home: Home) -> None:
    record(home, *(f"fox{at}" for at in range(20)))
    # Calls that meet the making of the index answer from what is there.
    refresh_index(home)

    async def work(session: ClientSession) -> None:
        await session.initialize()
        totals: dict[int, int] = {}

        async def search(at: int) -> None:
            _, answer = await ask(session, "search", words=f"fox{at}")
            totals[at] = json.loads(answer)["total"]

        async with anyio.create_task_group() as group:
            for at in range(20):
                group.start_soon(search, at)
        assert totals == dict.fromkeys(range(20), 1)

    talk(home, work)


def test_stdout_carries_only_the_protocol(home: Home) -> None:
    record(home, "fox \x1b[2J\r\nover\u2028lines \ud7ff ⟦", "fox " + "x" * 100_000)
    refresh_index(home)
    messages = [HELLO, READY, ask_call(2, "search", words="fox"), ask_call(3, "read_session", session_id="session-1")]
    garbage = [b"not JSON\n", b'{"jsonrpc": "2.0", "id": 9, "method": "no/such"}\n', b"\xff\xfe\n"]

    with started(home) as process:
        send(process, *messages[:2], *garbage, *messages[2:])
        answers: dict[int | None, Any] = {}
        while not {1, 2, 3} <= set(answers):
            answer = receive(process)
            assert answer["jsonrpc"] == "2.0"
            answers[answer.get("id")] = answer
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE) == 0

    for number in (2, 3):
        assert answers[number]["result"]["isError"] is False
        assert "fox" in answers[number]["result"]["content"][0]["text"]
    assert answers[9]["error"]["code"] == -32601


def test_a_client_that_is_gone_ends_the_server_quietly(home: Home) -> None:
    record(home, "fox")

    with started(home) as process:
        send(process, HELLO, READY)
        receive(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        send(process, ask_call(2, "search", words="fox"))
        assert process.wait(PATIENCE) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_immediately(home: Home, number: signal.Signals) -> None:
    record(home, "fox")

    with started(home) as process:
        send(process, HELLO)
        receive(process)
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_without_a_home_the_command_names_setup(home: Home) -> None:
    result = Hyp(home.root).run("mcp")

    assert (result.code, result.out) == (3, "")
    assert "hyp setup" in result.err
    assert not home.root.exists()


def test_without_the_sdk_the_command_names_the_package(home: Home) -> None:
    record(home, "fox")
    script = "import sys; sys.modules['mcp'] = None; from hypaware.cli import entry; sys.exit(entry.run(['mcp']))"

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HYP_HOME": str(home.root)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert "try: pip install 'hypaware[mcp]'" in done.stderr
