"""`hyp open`: the address it prints, who serves it, and what it does where there is no browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hypaware.home import Home
from tests.support.delivery_home import write_config
from tests.support.index_home import make_home, prompt
from tests.support.processes import PATIENCE, eventually
from tests.support.served_page import ServedPage

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def recorded(home: Home) -> Home:
    return make_home(home.root, prompt(1, "hello", at="2026-11-15T08:00:00Z"))


@pytest.fixture(autouse=True)
def no_browser_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def running(home: Home, *args: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hypaware.cli", "open", *args]
    with subprocess.Popen(
        command,
        env={**os.environ, "HYP_HOME": str(home.root), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def visit(url: str) -> ServedPage:
    """Sign in with a printed address."""
    parts = urlsplit(url)
    assert parts.port is not None
    page = ServedPage(parts.port)
    assert page.ask(f"{parts.path}?{parts.query}").status == 303
    return page


def test_without_a_daemon_the_command_serves_the_page_until_ctrl_c(recorded: Home) -> None:
    with running(recorded, "--port", "0", "--no-browser") as process:
        url = first_line(process)
        assert url.startswith("http://127.0.0.1:")
        assert visit(url).ask("/notice").status in (200, 204)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        assert "Ctrl-C" in err
        assert "Traceback" not in err


def test_json_is_one_document(recorded: Home) -> None:
    with running(recorded, "--port", "0", "--no-browser", "--json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        document = json.loads("".join(lines))
        assert set(document) == {"url", "served_by"}
        assert document["served_by"] == "foreground"
        visit(document["url"])
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")


def test_the_address_of_the_config_is_used_if_no_daemon_runs(recorded: Home) -> None:
    write_config(recorded, 'version = 1\n[page]\nlisten = "localhost:0"\n')
    with running(recorded, "--no-browser") as process:
        visit(first_line(process))


def test_a_port_in_use_is_an_error_that_names_another(recorded: Home, hyp: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, err = hyp("open", "--port", str(port), "--no-browser")
        assert (code, out) == (3, "")
        assert f"127.0.0.1:{port}" in err
        assert "hyp open --port " in err
        code, out, _ = hyp("open", "--port", str(port), "--json")
        assert json.loads(out)["error"]["kind"] == "page_address"
    assert not list((recorded.run / "page").glob("tokens/*")), "no link was made"


def test_without_a_home_it_names_setup_and_creates_nothing(home: Home, hyp: Run) -> None:
    code, _, err = hyp("open", "--no-browser")
    assert code == 3
    assert "hyp setup" in err
    assert not home.root.exists()


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_an_invalid_port_is_wrong_usage(recorded: Home, hyp: Run, port: str) -> None:
    assert hyp("open", "--port", port)[0] == 2


def test_the_browser_gets_the_address_and_its_output_does_not_mix_with_ours(recorded: Home, tmp_path: Path) -> None:
    got = tmp_path / "address"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "noise of a browser"\nprintf %s "$1" > {got}.new\nmv {got}.new {got}\n')
    browser.chmod(0o755)
    with running(recorded, "--port", "0", BROWSER=f"{browser} %s") as process:
        url = first_line(process)
        eventually(got.exists)
        assert got.read_text() == url
        process.send_signal(signal.SIGINT)
        assert "noise" not in "".join(process.communicate(timeout=PATIENCE))


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22", "DISPLAY": ":0"}, "SSH session"), ({}, "no display")],
)
def test_where_no_browser_can_be_opened_it_says_how_to_forward_the_port(
    recorded: Home, environment: dict[str, str], reason: str
) -> None:
    with running(recorded, "--port", "0", **environment) as process:
        port = urlsplit(first_line(process)).port
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert reason in err
        assert f"ssh -L {port}:127.0.0.1:{port}" in err


def test_the_daemon_serves_the_page_if_it_runs(recorded: Home, hyp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypaware.daemon import lifecycle

    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(recorded.root.parent / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(recorded.root.parent / "codex"))
    write_config(
        recorded,
        'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n[page]\nlisten = "127.0.0.1:0"\n'
        "[clients.claude]\nenabled = false\n[clients.codex]\nenabled = false\n",
    )
    lifecycle.start_daemon(recorded, PATIENCE)
    try:
        code, out, _ = hyp("open", "--no-browser", "--json")
        document = json.loads(out)
        assert (code, document["served_by"]) == (0, "daemon")
        page = visit(document["url"])
        assert page.ask("/notice").status in (200, 204)
        status = json.loads(hyp("status", "--json")[1])
        assert status["daemon"]["page"]["listen"] == f"127.0.0.1:{page.port}"
        assert f"page on http://127.0.0.1:{page.port}" in hyp("status")[1]
        # A port of its own: the command serves it, next to the daemon.
        with running(recorded, "--port", "0", "--no-browser") as process:
            assert visit(first_line(process)).port != page.port
        write_config(recorded, 'version = 1\n[page]\nlisten = "0.0.0.0:1"\n')
        code, out, _ = hyp("open", "--no-browser", "--json")
        assert (code, json.loads(out)["served_by"]) == (0, "daemon"), "an invalid config changes nothing"
    finally:
        lifecycle.stop_daemon(recorded, PATIENCE, force=True)
