"""The gateway in a real daemon process: recording, shutdown, takeover and config changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import attach as clients_attach
from hypaware.clients import session_hook
from hypaware.clients.attach import AttachRecord, PreviousUpstream
from hypaware.gateway import handover
from hypaware.gateway.routes import list_presets
from hypaware.home import Home, daemon_process, locks
from hypaware.home.session_context import session_columns
from hypaware.spool.reader import read_spooled_rows
from tests.support.daemon_home import DaemonHome
from tests.support.delivery_home import write_config
from tests.support.live_gateway import ClientConnection, post
from tests.support.ports import FreePort
from tests.support.processes import PATIENCE, eventually, kill
from tests.support.upstream_stub import ReceivedRequest, StubResponse, UpstreamStub, anthropic_events, in_dialect

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": true}'


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[UpstreamStub]:
    with UpstreamStub() as found:
        monkeypatch.setenv("SSL_CERT_FILE", str(found.ca_file))
        yield found


@pytest.fixture
def quiet_end(home: Home) -> Iterator[None]:
    """End the fallback listener with the test."""
    yield
    if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(handover.fallback_lock_path(home)))


def declare(daemon: DaemonHome, stub: UpstreamStub, port: int, more: str = "") -> None:
    upstream = f'[[gateway.upstreams]]\nname = "stub"\nbase_url = "{stub.url}"\nprovider = "anthropic"\n'
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n{upstream}{more}')


def gateway_status(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = daemon_process.read_daemon_status(home).get("gateway", {})
    return found


def connect(port: int) -> ClientConnection:
    return ClientConnection(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))


def ask(port: int, path: str = "/claude/v1/messages") -> bytes:
    with connect(port) as wire:
        wire.send(post(path, BODY))
        head, body = wire.answer()
    assert head.startswith(b"HTTP/1.1 200"), head
    return body


def who(port: int) -> str:
    """Return what answers at the port."""
    with connect(port) as wire:
        wire.send(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % handover.HEALTH_PATH.encode())
        head = wire.head()
        return str(json.loads(wire.body(head, b"GET"))["hypaware"])


def attach(home: Home, port: int, upstream: PreviousUpstream | None = None) -> None:
    """Write the attach record of `hyp client attach`."""
    clients_attach.write_record(
        home,
        AttachRecord(
            client="claude",
            path="/nowhere/settings.json",
            existed=True,
            original_sha256="",
            written_sha256="",
            splices=(),
            base_url=f"http://127.0.0.1:{port}/claude",
            ours={},
            before={},
            upstreams=(upstream,) if upstream else (),
            at="2026-11-15T00:00:00Z",
        ),
    )


def recorded(home: Home) -> list[str]:
    return [str(row["path"]) for row in read_spooled_rows(home, "ai_gateway_exchanges")]


def run_hook(home: Home, session_id: str, cwd: Path) -> None:
    """Run the hook of an attached client."""
    command = session_hook.build_hook_command("claude", "/nonexistent/hyp", str(home.root))
    event = json.dumps({"session_id": session_id, "cwd": str(cwd), "prompt": "secret"}, separators=(",", ":"))
    subprocess.run(["sh", "-c", command], input=event.encode(), check=True)


def note_reader(home: Home) -> str:
    path = home.run / "hook-notes"
    return path.read_text().split()[0] if path.exists() else ""


class Slow:
    """A provider whose responses end when the test releases them."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, seen: ReceivedRequest) -> StubResponse:
        if b'"slow"' not in seen.body:
            return in_dialect(seen)
        first, *rest = anthropic_events()
        return StubResponse(pieces=(first, self.go_on, *rest))


SLOW = BODY.replace(b'"hello"', b'"slow"')


def test_exchange_is_recorded_and_counted(daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort) -> None:
    port = free_port()
    declare(daemon, stub, port)
    with daemon.running() as running:
        eventually(lambda: gateway_status(daemon.home).get("state") == "listening")
        assert who(port) == "gateway"
        assert ask(port) == b"".join(anthropic_events())
        with connect(port) as wire:
            wire.send(post("/v2/unheard-of", b"{}"))
            assert wire.answer()[0].startswith(b"HTTP/1.1 404")
        eventually(lambda: gateway_status(daemon.home)["recorded"] == 2)
        assert recorded(daemon.home) == ["/v1/messages", "/v2/unheard-of"], (
            "rows are durable long before the daemon ends"
        )
        found = gateway_status(daemon.home)
        assert running.stop() == "\n", "the process imports neither Spark nor Arrow"
    assert {name: found[name] for name in ("listen", "error", "exchanges", "dropped", "ignored", "rejected_rows")} == {
        "listen": f"127.0.0.1:{port}",
        "error": None,
        "exchanges": 2,
        "dropped": 0,
        "ignored": 0,
        "rejected_rows": 0,
    }
    assert found["unknown"] == {"/v2/unheard-of": 1}
    assert found["since"]
    assert found["last_exchange_at"]
    assert not locks.is_locked(handover.fallback_lock_path(daemon.home)), (
        "no client is attached, so no fallback listener remains"
    )
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_notes_of_hooks_are_recorded_while_the_daemon_runs(
    daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort, tmp_path: Path
) -> None:
    declare(daemon, stub, free_port())
    session_hook.notes_path(daemon.home, "claude").parent.mkdir(parents=True)
    with daemon.running() as running:
        eventually(lambda: note_reader(daemon.home) == str(running.process.pid))
        run_hook(daemon.home, "s", tmp_path)
        eventually(lambda: session_columns(daemon.home.root, "claude").get("s", {}).get("cwd") == str(tmp_path))
        running.stop()
    assert note_reader(daemon.home) == ""


def test_a_note_counts_before_the_exchange_that_follows_it_is_recorded(
    daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort, tmp_path: Path
) -> None:
    port = free_port()
    declare(daemon, stub, port)
    session_hook.notes_path(daemon.home, "claude").parent.mkdir(parents=True)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / ".hypignore").touch()
    with daemon.running() as running:
        eventually(lambda: gateway_status(daemon.home).get("state") == "listening")
        eventually(lambda: note_reader(daemon.home))
        for number in range(5):
            # Between two looks of the daemon.
            run_hook(daemon.home, f"s{number}", tmp_path / "private")
            with connect(port) as wire:
                wire.send(post("/claude/v1/messages", BODY, f"X-Claude-Code-Session-Id: s{number}"))
                wire.answer()
        eventually(lambda: gateway_status(daemon.home)["exchanges"] == 5)
        assert gateway_status(daemon.home)["ignored"] == 5
        running.stop()
    assert recorded(daemon.home) == []


@pytest.mark.hazard(63)
@pytest.mark.usefixtures("quiet_end")
def test_client_keeps_working_after_the_daemon_is_killed_and_the_next_daemon_takes_over(
    daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort
) -> None:
    port = free_port()
    declare(daemon, stub, port)
    with daemon.running() as first:
        eventually(lambda: gateway_status(daemon.home).get("state") == "listening")
        attach(daemon.home, port)
        eventually(lambda: "a fallback listener is ready" in first.log)
        ask(port)
        eventually(lambda: recorded(daemon.home))
        kill(first.process)
    assert who(port) == "fallback"
    assert ask(port) == b"".join(anthropic_events())
    with daemon.running() as second:
        eventually(lambda: who(port) == "gateway")
        ask(port)
        second.stop()
    assert recorded(daemon.home) == ["/v1/messages"] * 2, "every exchange except the one served by the fallback"
    assert who(port) == "fallback"
    assert ask(port)


@pytest.mark.usefixtures("quiet_end")
def test_stop_finishes_and_records_open_responses_while_the_fallback_serves_new_requests(
    daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort
) -> None:
    port, slow = free_port(), Slow()
    stub.answer = slow
    declare(daemon, stub, port)
    with daemon.running() as running:
        eventually(lambda: gateway_status(daemon.home).get("state") == "listening")
        attach(daemon.home, port)
        eventually(lambda: "a fallback listener is ready" in running.log)
        with connect(port) as wire:
            wire.send(post("/claude/v1/messages", SLOW))
            head = wire.head()
            assert wire.chunk() == anthropic_events()[0]
            running.process.send_signal(signal.SIGTERM)
            eventually(lambda: who(port) == "fallback")
            assert "stopping_since" in daemon_process.read_daemon_status(daemon.home)
            slow.go_on.set()
            assert wire.body(head) == b"".join(anthropic_events()[1:])
        running.process.communicate(timeout=PATIENCE)
        assert running.process.returncode == 0
    (row,) = read_spooled_rows(daemon.home, "ai_gateway_exchanges")
    assert (row.get("error"), row["response_body"]) == (None, b"".join(anthropic_events()).decode())
    assert not list(daemon.home.spool.glob("*/active/*")), "the spool is sealed"


def test_address_in_use_is_reported_and_delays_nothing_else(
    daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as stranger:
        declare(daemon, stub, port, '[maintain]\ninterval = "1m"\n')
        with daemon.running() as running:
            eventually(lambda: gateway_status(daemon.home).get("state") == "down")
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in gateway_status(daemon.home)["error"]
            assert running.log.count("nothing is recorded") == 1
            look = daemon_process.read_daemon_status(daemon.home)["maintain"]["next_look"]
            eventually(lambda: daemon_process.read_daemon_status(daemon.home)["maintain"]["next_look"] != look)
            stranger.close()
            eventually(lambda: gateway_status(daemon.home)["state"] == "listening")
            assert gateway_status(daemon.home)["error"] is None
            assert who(port) == "gateway"
            running.stop()


@pytest.mark.usefixtures("quiet_end")
def test_routes_change_during_an_open_stream(daemon: DaemonHome, stub: UpstreamStub, free_port: FreePort) -> None:
    """A client with its own proxy keeps it; disabled clients are served but not recorded."""
    port, moved, slow = free_port(), free_port(), Slow()
    requested: list[bytes] = []
    stub.answer = slow
    declare(daemon, stub, port)
    with UpstreamStub() as other, daemon.running() as running:
        eventually(lambda: gateway_status(daemon.home).get("state") == "listening")
        with connect(port) as wire:
            wire.send(post("/claude/v1/messages", SLOW))
            head = wire.head()
            write_config(daemon.home, f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n')
            attach(daemon.home, port, PreviousUpstream("/claude", f"{other.url}/mine"))
            eventually(lambda: requested.append(ask(port)) or other.seen)  # type: ignore[func-returns-value]
            assert other.seen[-1].target == "/mine/v1/messages"
            declare(daemon, stub, moved, "[clients.claude]\nenabled = false\n[clients.codex]\nenabled = false\n")
            eventually(lambda: gateway_status(daemon.home)["listen"] == f"127.0.0.1:{moved}")
            assert who(moved) == "gateway"
            ask(moved)
            slow.go_on.set()
            assert wire.body(head) == b"".join(anthropic_events())
            assert who(port) == "fallback", "open connections to the old address are served"
        running.stop()
    rows = list(read_spooled_rows(daemon.home, "ai_gateway_exchanges"))
    assert {row["upstream"] for row in rows} == {"stub", "claude-own"}
    assert [row.get("error") for row in rows] == [None] * len(rows)
    assert len(rows) == 1 + len(requested), "exchanges of a disabled client are not recorded"


def test_gateway_does_not_listen_without_a_client(daemon: DaemonHome, free_port: FreePort) -> None:
    port = free_port()
    text = f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n'
    off = "".join(f"[clients.{name}]\nenabled = false\n" for name in list_presets())
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, text + off)
    with daemon.running() as running:
        eventually(lambda: gateway_status(daemon.home).get("state") == "off")
        with pytest.raises(ConnectionRefusedError):
            connect(port)
        write_config(daemon.home, text)
        eventually(lambda: gateway_status(daemon.home)["state"] == "listening")
        write_config(daemon.home, text + off)
        eventually(lambda: gateway_status(daemon.home)["state"] == "off")
        running.stop()
