"""`hyp client` with a real gateway, and with other programs on its port."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hypaware.clients import attach
from hypaware.gateway import handover
from hypaware.home import Home, locks
from tests.support.ports import FreePort
from tests.support.processes import eventually

Hyp = Callable[..., tuple[int, str, str]]
TEXT = '{\n  "model": "opus"\n}\n'


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a user with both clients, isolated from the real user of this machine."""
    folder = tmp_path / "user"
    for name in (".claude", ".codex"):
        (folder / name).mkdir(parents=True)
    (folder / ".claude/settings.json").write_text(TEXT)
    monkeypatch.setenv("HOME", str(folder))
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "ANTHROPIC_BASE_URL",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def port(home: Home, free_port: FreePort, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the port of this home's gateway, and stop a fallback process after the test."""
    for name in ("_START_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(handover, name, 120.0)
    free = free_port()
    listen_at(home, free)
    try:
        yield free
    finally:
        end_listener(home)


def listen_at(home: Home, port: int) -> None:
    home.root.mkdir(mode=0o700, exist_ok=True)
    home.config.write_text(f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n')


def end_listener(home: Home) -> None:
    if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(handover.fallback_lock_path(home)))


def state(hyp: Hyp, name: str = "claude") -> tuple[int, str]:
    code, out, _ = hyp("client", "status", name, "--json")
    return code, json.loads(out)["clients"][0]["state"]


@pytest.mark.hazard(63)
def test_a_client_is_attached_reported_and_detached(
    hyp: Hyp, home: Home, user: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = user / ".claude/settings.json"
    assert state(hyp) == (0, "detached")
    code, out, err = hyp("client", "attach", "claude")
    assert (code, out) == (0, f"claude is attached to the gateway at http://127.0.0.1:{port}/claude ({settings})\n")
    assert "hyp daemon start" in err
    assert "after a reboot" in err
    assert "hyp daemon install" in err
    # Requests are not recorded, but the client works.
    assert state(hyp) == (0, "passing")
    assert "the daemon is not running" in hyp("client", "status", "claude")[2]
    assert hyp("config", "set", "gateway.listen", "127.0.0.1:9")[0] == 0
    assert (
        "gateway.listen is 127.0.0.1:9, so requests are not recorded (hyp client attach claude)"
        in hyp("client", "status", "claude")[2]
    )
    assert hyp("config", "set", "gateway.listen", f"127.0.0.1:{port}")[0] == 0
    assert "is already attached" in hyp("client", "attach", "claude")[1]
    with handover.acquire_socket(home, f"127.0.0.1:{port}") as taken, gateway(home, taken.socket):
        assert state(hyp) == (0, "attached")
        home.run.joinpath("gateway.json").write_text(
            json.dumps({"clients": {"claude": {"last_seen_at": "2999-01-01T00:00:00Z", "exchanges": 3}}})
        )
        report = json.loads(hyp("client", "status", "claude", "--json")[1])["clients"][0]
        assert (report["state"], report["exchanges"], report["answered_by"]) == ("recording", 3, "gateway")
    settings.write_text("{}")
    code, out, _ = hyp("client", "status", "claude", "--json")
    report = json.loads(out)
    assert (code, report["clients"][0]["state"], report["error"]["repair"]) == (
        1,
        "changed",
        ["hyp client attach claude"],
    )
    assert hyp("client", "attach", "claude")[0] == 0
    end_listener(home)
    # The hook of the next prompt opens the address again.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"session_id": "s", "cwd": "/nonexistent"}')))
    assert hyp("hook", "claude") == (0, "", "")
    with handover.acquire_socket(home, f"127.0.0.1:{port}") as held:
        assert held.address == ("127.0.0.1", port)
    assert state(hyp) == (0, "passing")
    code, out, err = hyp("client", "detach", "claude")
    assert (code, out) == (0, f"claude is detached ({settings})\n")
    assert f"still call 127.0.0.1:{port}; it stays open until an hour after" in err
    assert settings.read_text() == "{}"
    assert "was not attached" in hyp("client", "detach", "claude")[1]


@pytest.mark.hazard(111)
@pytest.mark.parametrize("command", [("client", "status", "codex"), ("session", "status"), ("config", "show")])
def test_any_command_opens_the_address_of_an_attached_client_again(
    hyp: Hyp, home: Home, user: Path, port: int, command: tuple[str, ...]
) -> None:
    assert hyp("client", "attach", "codex")[0] == 0
    end_listener(home)  # as a reboot does
    code, out, err = hyp(*command, "--json")
    assert code == 0
    json.loads(out)
    assert f"codex: nothing listened at 127.0.0.1:{port}" in err
    assert "hyp daemon start" in err
    assert state(hyp, "codex") == (0, "passing")
    assert hyp(*command)[2].count("nothing listened") == 0
    assert hyp("client", "detach", "codex")[0] == 0
    end_listener(home)
    hyp(*command)
    assert not locks.is_locked(handover.fallback_lock_path(home)), "no client calls the address any more"


@pytest.mark.hazard(111)
def test_an_address_that_cannot_be_opened_again_is_reported(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    assert hyp("client", "attach", "codex")[0] == 0
    end_listener(home)
    shutil.rmtree(home.logs)
    home.logs.touch()
    code, out, err = hyp("client", "status", "codex", "--json")
    assert (code, json.loads(out)["clients"][0]["state"]) == (1, "broken")
    assert f"codex: nothing listens at 127.0.0.1:{port}" in err
    assert "hyp client detach codex" in err


@pytest.mark.parametrize("attached", [False, True])
def test_a_proxy_of_the_user_is_never_asked_whether_it_is_our_gateway(
    hyp: Hyp, home: Home, user: Path, port: int, attached: bool
) -> None:
    if attached:
        assert hyp("client", "attach", "claude")[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}/claude"
        (user / ".claude/settings.json").write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": url}}))
        assert state(hyp) == ((1, "changed") if attached else (0, "detached"))
        hyp("status")
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_broken_settings_of_one_client_do_not_affect_the_others(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    """This holds for attach and detach, and the error names the broken file."""
    settings = user / ".claude/settings.json"
    settings.write_text("{ no JSON")
    code, out, err = hyp("client", "attach")
    assert (code, out.split(" is ")[0]) == (1, "codex")
    assert f"error: claude: {settings}: cannot edit Claude Code's settings.json" in err
    code, out, _ = hyp("client", "detach", "--json")
    report = json.loads(out)
    assert (code, [each["client"] for each in report["clients"]]) == (1, ["codex", "opencode"])
    assert report["error"]["message"].startswith(f"claude: {settings}: ")
    assert not (user / ".codex/config.toml").exists()


def test_without_a_name_a_disabled_client_is_not_attached(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    """A suggested `hyp client attach` must not attach clients that the user did not choose."""
    home.config.write_text(home.config.read_text() + "[clients]\nclaude.enabled = false\n")
    assert hyp("client", "attach")[1].split(" is ")[0] == "codex"
    home.config.write_text(home.config.read_text() + "codex.enabled = false\n")
    code, _, err = hyp("client", "attach")
    assert (code, "disables every installed client" in err) == (2, True)
    assert hyp("client", "attach", "claude")[0] == 0, "who names it means it"


class gateway:
    """Run a gateway on the given socket."""

    def __init__(self, home: Home, listener: socket.socket) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(handover.describe_health(home, "gateway")).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = HTTPServer(listener.getsockname()[:2], Answer, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener.dup()
        self._server.socket.setblocking(True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_all_clients_are_attached_after_a_dry_run_that_changes_nothing(
    hyp: Hyp, home: Home, user: Path, port: int
) -> None:
    code, out, _ = hyp("client", "attach", "--dry-run")
    assert code == 0
    assert f'+openai_base_url = "http://127.0.0.1:{port}/codex/v1"' in out
    assert f"http://127.0.0.1:{port}/claude" in out
    assert (user / ".claude/settings.json").read_text() == TEXT
    assert sorted(path.name for path in home.root.iterdir()) == ["config.toml"]
    report = json.loads(hyp("client", "attach", "--json")[1])
    assert [(each["client"], each["changed"]) for each in report["clients"]] == [("claude", True), ("codex", True)]
    assert (user / ".codex/config.toml").read_text().startswith("# >>> hypaware")
    report = json.loads(hyp("client", "detach", "--json")[1])
    assert [each["client"] for each in report["clients"] if each["changed"]] == ["claude", "codex"]
    assert (user / ".claude/settings.json").read_text() == TEXT
    assert not (user / ".codex/config.toml").exists()


@pytest.mark.hazard(63)
def test_a_client_is_not_attached_to_the_port_of_another_program(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen_at(home, other.getsockname()[1])
        threading.Thread(target=lambda: other.accept()[0].close()).start()
        accepted = threading.Thread(target=lambda: other.accept()[0].close())
        accepted.start()
        code, out, _ = hyp("client", "attach", "claude", "--json")
        accepted.join()
    assert (code, json.loads(out)["error"]["kind"]) == (3, "gateway_address")
    assert (user / ".claude/settings.json").read_text() == TEXT
    assert attach.read_record(home, "claude") is None


@pytest.mark.hazard(63)
def test_the_gateway_of_another_home_is_not_accepted(
    hyp: Hyp, home: Home, user: Path, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert hyp("client", "attach", "claude")[0] == 0
    other = Home(tmp_path / "other")
    listen_at(other, port)
    monkeypatch.setenv("HYP_HOME", str(other.root))
    assert hyp("client", "attach", "codex")[0] == 3
    assert not (user / ".codex/config.toml").exists()


def test_settings_that_cannot_be_parsed_are_left_unchanged(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    (user / ".claude/settings.json").write_text("{ // mine\n}")
    code, out, err = hyp("client", "attach", "claude")
    assert (code, out) == (1, "")
    assert "line 1" in err
    assert (user / ".claude/settings.json").read_text() == "{ // mine\n}"
    assert sorted(path.name for path in home.root.iterdir()) == ["config.toml"]
    assert "cannot edit" in hyp("client", "status", "claude")[2]


def test_an_unknown_client_is_an_error_that_suggests_the_nearest_name(hyp: Hyp, user: Path) -> None:
    code, _, err = hyp("client", "attach", "claud")
    assert (code, "Did you mean claude?" in err) == (1, True)


def test_without_any_client_one_must_be_named(hyp: Hyp, user: Path) -> None:
    for name in (".claude", ".codex"):
        for path in (user / name).iterdir():
            path.unlink()
        (user / name).rmdir()
    assert hyp("client", "attach")[0] == 2
    assert hyp("client", "detach")[0] == 0


@pytest.mark.hazard(62)
def test_terminal_escapes_in_a_settings_file_are_escaped(hyp: Hyp, home: Home, user: Path, port: int) -> None:
    (user / ".claude/settings.json").write_text(
        json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://x/\x1b]0;owned\x07"}}, ensure_ascii=False).replace(
            "\\u001b", "\\u001b"
        )
    )
    shown = "".join(hyp("client", "status")[1:]) + "".join(hyp("client", "attach", "claude", "--dry-run")[1:])
    assert "\x1b" not in shown


def test_status_takes_the_dry_run_of_attach_and_detach(hyp: Hyp, user: Path) -> None:
    assert hyp("client", "status", "--dry-run", "--json") == hyp("client", "status", "--json")
