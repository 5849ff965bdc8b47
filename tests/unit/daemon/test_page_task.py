"""The daemon lets the page be served: by a process of its own, when somebody asks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from hypaware.config import Config, PageConfig
from hypaware.daemon import page_task
from hypaware.daemon.page_task import PageTask, page_log_path
from hypaware.daemon.status_file import StatusFile
from hypaware.engine.background import TaskClock
from hypaware.home import Home
from hypaware.page.access import SignIn, open_address
from tests.support.daemon_home import NO_CLIENTS, DaemonHome, daemon_part
from tests.support.delivery_home import write_config
from tests.support.processes import PATIENCE, eventually
from tests.support.served_page import ServedPage

ANY_PORT = f'{NO_CLIENTS}[page]\nlisten = "127.0.0.1:0"\n'


@pytest.fixture(autouse=True)
def no_transcripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))


@pytest.fixture(autouse=True)
def no_process_is_left(daemon: DaemonHome) -> Iterator[None]:
    yield
    eventually(lambda: not list(page_processes(daemon.home)))


def page_processes(home: Home) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "hypaware.page.process" in command and str(home.root) in command:
            yield process


def page_of(home: Home) -> dict[str, object]:
    return daemon_part(home, "page")


def served(home: Home) -> ServedPage:
    listen = str(page_of(home)["listen"])
    return ServedPage(int(listen.rpartition(":")[2]))


def page_pid(home: Home) -> int:
    return int(str(page_of(home)["pid"]))


def test_the_first_request_starts_a_process_that_serves_the_page(daemon: DaemonHome) -> None:
    write_config(daemon.home, ANY_PORT)
    with daemon.running() as running:
        assert page_of(daemon.home)["state"] == "listening"
        assert page_of(daemon.home)["pid"] is None
        assert list(page_processes(daemon.home)) == []
        page = served(daemon.home)
        assert page.ask("/").status == 401
        assert page.ask(open_address("", SignIn(daemon.home).make_token())).status == 303
        assert page.ask("/notice").status in (200, 204)
        eventually(lambda: page_of(daemon.home)["pid"] is not None)
        (process,) = page_processes(daemon.home)
        assert process.pid == page_pid(daemon.home) != running.process.pid
        assert process.nice() == min(19, psutil.Process(running.process.pid).nice() + 10), "the gateway comes first"
        log = page_log_path(daemon.home)
        assert "the page is served by process" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
        assert running.stop().strip() == "", "the daemon has loaded nothing of the page"


def test_a_killed_process_is_replaced_by_the_next_request(daemon: DaemonHome) -> None:
    write_config(daemon.home, ANY_PORT)
    with daemon.running():
        page = served(daemon.home)
        assert page.ask("/").status == 401
        for _ in range(2):
            eventually(lambda: page_of(daemon.home)["pid"] is not None)
            killed = page_pid(daemon.home)
            os.kill(killed, signal.SIGKILL)
            # A request in this moment waits in the queue of the socket.
            assert page.ask("/").status == 401
            eventually(lambda killed=killed: page_of(daemon.home)["pid"] not in (None, killed))  # type: ignore[misc]


def test_a_killed_daemon_leaves_no_process_behind(daemon: DaemonHome) -> None:
    write_config(daemon.home, ANY_PORT)
    with daemon.running() as running:
        page = served(daemon.home)
        assert page.ask("/").status == 401
        running.process.kill()
        running.process.wait()
        eventually(lambda: not list(page_processes(daemon.home)))
        with pytest.raises(ConnectionError):
            page.ask("/")


def test_a_daemon_that_stops_ends_the_process_even_while_it_answers(daemon: DaemonHome) -> None:
    write_config(daemon.home, ANY_PORT)
    with daemon.running() as running:
        page = served(daemon.home)
        assert page.ask("/").status == 401
        eventually(lambda: page_of(daemon.home)["pid"] is not None)
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")  # a request that never ends
            os.kill(page_pid(daemon.home), signal.SIGSTOP)
            running.stop()
        assert list(page_processes(daemon.home)) == []


def test_a_process_that_fails_immediately_is_restarted_after_growing_pauses(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.run.mkdir(parents=True)
    config = Config(page=PageConfig(listen="127.0.0.1:0"))
    started: list[subprocess.Popen[bytes]] = []

    class Clock(TaskClock):
        time = 0.0

        def monotonic(self) -> float:
            return self.time

    def start(_home: Home, _listener: socket.socket) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], stdin=subprocess.PIPE))
        return started[-1]

    async def run() -> list[int]:
        clock, counts = Clock(), []
        task = PageTask(home, lambda: config, StatusFile(home, datetime.now(UTC)), clock)
        await task.begin()
        assert task._listener is not None
        with socket.create_connection(task._listener.socket.getsockname()):
            for pause in (0.0, 0.5, 1.0, 1.5, 1.0, 3.0, 2.0):
                clock.time += pause
                for _ in range(10):
                    await task._check()
                    await asyncio.sleep(0.001)  # lets the loop see the connection
                    for process in started:
                        process.wait()
                counts.append(len(started))
        await task.close()
        return counts

    monkeypatch.setattr(page_task, "start_page_process", start)
    # The pauses are 1, 2 and 4 seconds.
    assert asyncio.run(run()) == [1, 1, 2, 2, 3, 3, 4]


def test_a_port_in_use_is_reported_once_and_tried_again(daemon: DaemonHome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        write_config(daemon.home, f'{NO_CLIENTS}[page]\nlisten = "127.0.0.1:{port}"\n')
        with daemon.running() as running:
            assert page_of(daemon.home)["state"] == "down"
            assert "in use" in str(page_of(daemon.home)["error"])
            write_config(daemon.home, f'{NO_CLIENTS}[page]\nlisten = "127.0.0.1:{port}"\n# another try\n')
            eventually(lambda: "the config was reloaded" in running.log)
            assert running.log.count("the page cannot be served") == 1
            other.close()
            eventually(lambda: page_of(daemon.home)["state"] == "listening")
            assert page_of(daemon.home)["error"] is None
            assert served(daemon.home).ask("/").status == 401


def test_the_default_port_may_be_used_by_another_home(daemon: DaemonHome) -> None:
    write_config(daemon.home, NO_CLIENTS)
    default = PageConfig().listen
    host, _, port = default.rpartition(":")
    is_held = False
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(socket.create_server((host, int(port))))
            is_held = True
        with daemon.running():
            assert page_of(daemon.home)["state"] == "listening"
            # Another program that used the port may have released it by now.
            assert page_of(daemon.home)["listen"] != default or not is_held
            assert served(daemon.home).ask("/").status == 401


def test_changes_of_the_config_are_followed(daemon: DaemonHome) -> None:
    write_config(daemon.home, ANY_PORT)
    with daemon.running():
        first = served(daemon.home)
        assert first.ask("/").status == 401
        write_config(daemon.home, f'{NO_CLIENTS}[page]\nlisten = "localhost:0"\n')
        eventually(lambda: page_of(daemon.home)["listen"] != f"127.0.0.1:{first.port}")
        with pytest.raises(ConnectionError):
            first.ask("/")
        second = served(daemon.home)
        assert second.ask("/").status == 401
        write_config(daemon.home, f"{NO_CLIENTS}[page]\nenabled = false\n")
        eventually(lambda: page_of(daemon.home)["state"] == "off")
        assert list(page_processes(daemon.home)) == []
        with pytest.raises(ConnectionError):
            second.ask("/")
        write_config(daemon.home, ANY_PORT)
        eventually(lambda: page_of(daemon.home)["state"] == "listening")
        assert served(daemon.home).ask("/").status == 401


def test_the_gateway_answers_while_the_page_does_not(daemon: DaemonHome) -> None:
    write_config(
        daemon.home,
        'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n[clients.claude]\nenabled = true\n'
        '[page]\nlisten = "127.0.0.1:0"\n',
    )
    with daemon.running():
        page = served(daemon.home)
        assert page.ask("/").status == 401
        eventually(lambda: page_of(daemon.home)["pid"] is not None)
        pid = page_pid(daemon.home)
        os.kill(pid, signal.SIGSTOP)
        try:
            with socket.create_connection(("127.0.0.1", page.port)) as waiting:
                waiting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                gateway = daemon_part(daemon.home, "gateway")["listen"]
                with urlopen(f"http://{gateway}/_hypaware/health", timeout=PATIENCE) as answer:
                    assert answer.status == 200
        finally:
            os.kill(pid, signal.SIGCONT)
