"""Live capture as a user has it: the real daemon, a provider over TLS, real clients' requests, and nothing lost.

One home, one engine, one story: a client is attached, works, has its daemon killed under it, works on, and at the end
every part of its conversations is in the lake once, and none of its secrets is anywhere.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hypaware import lock_file
from hypaware.capture import handover
from hypaware.capture.decoded import Decoded
from hypaware.capture.project.projection import project
from hypaware.capture.project.seen import Seen
from hypaware.capture.redact_exchange import redacted
from hypaware.home import Home
from hypaware.maintain.purge import needles
from hypaware.maintain.purge.sweep import avro_records
from tests import claude_files, upstream_stub, wire
from tests.command import Hyp
from tests.light_lake import read_lake
from tests.live_gateway import Wire
from tests.ports import held_port
from tests.processes import PATIENCE, eventually
from tests.upstream_stub import Answer, UpstreamStub, anthropic_events

pytestmark = pytest.mark.spark

CONVERSATION = wire.SAMPLES / "claude-2.1.325/interactive.ndjson.xz"
OTHERS = [
    wire.SAMPLES / name
    for name in ("claude-2.1.325/subagent.ndjson.xz", "codex-0.166.0/tools.ndjson.xz", "codex-0.77.0/basic.ndjson.xz")
]
MESSAGES, EXCHANGES = "ai_gateway_messages", "ai_gateway_exchanges"
API_KEY = "sk-ant-api03-" + "Zq7_" * 23 + "AA"
PLANTED = {
    "authorization": "Bearer planted-bearer-0001",
    "x-api-key": "planted-api-key-0002",
    "cookie": "session=planted-cookie-0003",
    "x-company-thing": "planted-odd-header-0004",
}
SECRETS = ["planted-bearer-0001", "planted-api-key-0002", "planted-cookie-0003", "planted-odd-header-0004"]
SECRETS += ["planted-query-0005", "planted-set-cookie-0006", API_KEY]


class Provider:
    """Answers what the real one answered to the same bytes; a request for `slowly` waits for the test."""

    def __init__(self, exchanges: list[Decoded]) -> None:
        self._known = {_body(each): each for each in exchanges}
        self.go_on = threading.Event()

    def __call__(self, seen: upstream_stub.Seen) -> Answer:
        if b"slowly" in seen.body:
            first, *rest = anthropic_events()
            return Answer(pieces=(first, self.go_on, *rest))
        if b"planted" in seen.head:
            headers = (*upstream_stub.EVENT_STREAM, ("set-cookie", "planted-set-cookie-0006"))
            return Answer(headers=headers, pieces=anthropic_events([API_KEY[:20], API_KEY[20:], " is yours"]))
        found = self._known[seen.body]
        kept = ("content-type", "request-id", "x-request-id")
        headers = tuple((name, value) for name, value in found.response_headers.items() if name in kept)
        if seen.method == "HEAD":
            return Answer(found.status or 200, "OK", headers, framing="none")
        return Answer(found.status or 200, "OK", headers, ((found.response_text or "").encode(),), framing="length")


def _body(exchange: Decoded) -> bytes:
    return (exchange.request_text or "").encode()


def _not_gone(exchange: Decoded) -> bool:
    """A sample of an aborted exchange has no whole answer that could be given again."""
    return exchange.error is None


class Client:
    """Says what a real client said, at the address that attach gave it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def connect(self) -> Wire:
        return Wire(socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE))

    def sends(self, exchange: Decoded) -> None:
        mark = "codex" if "responses" in exchange.path else "claude"
        target = f"/{mark}{exchange.path}" + (f"?{exchange.query}" if exchange.query else "")
        dropped = ("host", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding")
        headers = {name: value for name, value in exchange.request_headers.items() if name not in dropped}
        with self.connect() as connection:
            connection.send(_request(target, _body(exchange), headers, exchange.method))
            head, body = connection.answer(exchange.method.encode())
        assert int(head.split(b" ", 2)[1]) == exchange.status, body
        if exchange.method != "HEAD":
            assert body == (exchange.response_text or "").encode()

    def is_answered_by(self) -> str | None:
        """The gateway or who stands by for it; None while the one gives way to the other."""
        with suppress(OSError, EOFError), self.connect() as connection:
            connection.send(_request(handover.HEALTH, b"", {}, "GET"))
            return str(json.loads(connection.answer(b"GET")[1])["hypaware"])
        return None

    @contextmanager
    def asks_slowly(self) -> Iterator[tuple[Wire, bytes]]:
        """An answer under way: its connection and its head."""
        with self.connect() as connection:
            connection.send(_request("/claude/v1/messages", _asked("slowly"), {}))
            head = connection.head()
            assert connection.chunk() == anthropic_events()[0]
            yield connection, head


def _asked(words: str) -> bytes:
    metadata = {"user_id": json.dumps({"session_id": f"session-{words[:6]}"})}
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "metadata": metadata}
    return json.dumps(body).encode()


def _request(target: str, body: bytes, headers: dict[str, str], method: str = "POST") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode("latin-1") + body


@contextmanager
def daemon(hyp: Hyp, environment: dict[str, str]) -> Iterator[Any]:
    with hyp.start("daemon", "run", **environment) as process:
        try:
            eventually(lambda: told(hyp).get("pid") == process.pid and told(hyp)["gateway"]["state"] == "listening")
            yield process
        finally:
            process.kill()
            process.communicate()


def told(hyp: Hyp) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((hyp.home / "run" / "daemon.json").read_bytes())
    except FileNotFoundError:
        return {}
    return found


@pytest.fixture
def port() -> Iterator[int]:
    """Of the gateway, through all that befalls it."""
    with held_port() as found:
        yield found


@pytest.fixture
def listener_ends(hyp: Hyp) -> Iterator[None]:
    yield
    path = handover.lock_path(Home(hyp.home))
    if (pid := lock_file.holder(path)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lock_file.is_taken(path))


def expected(exchanges: list[Decoded], seen: Seen) -> set[str]:
    """The ids of the messages that they are made of."""
    return {row["message_id"] for each in exchanges for row in project(redacted(each)[0], seen).rows}


def holding(home: Path, secrets: list[str]) -> dict[str, list[str]]:
    """Files under the home that hold one of them, looked into as far as they can be unpacked."""
    found: dict[str, list[str]] = {}
    for path in (each for each in home.rglob("*") if each.is_file()):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            # Of the engine, which clears up after itself.
            continue
        if path.suffix == ".parquet":
            content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        elif path.suffix == ".avro":
            content += "".join(map(str, avro_records(path))).encode()
        there = [secret for secret in secrets if secret.encode() in content]
        if not there and needles.standing_in(path, [secret.encode() for secret in secrets]):
            there = ["within something packed"]
        if there:
            found[str(path.relative_to(home))] = there
    return found


@pytest.mark.hazard(55)
@pytest.mark.hazard(59)
@pytest.mark.hazard(63)
@pytest.mark.hazard(65)
@pytest.mark.hazard(67)
@pytest.mark.hazard(83)
@pytest.mark.usefixtures("listener_ends")
def test_a_client_works_through_kills_and_stops_and_each_part_is_kept_once(hyp: Hyp, tmp_path: Path, port: int) -> None:
    conversation = [each for each in wire.sample(CONVERSATION) if _not_gone(each)]
    others = [each for path in OTHERS for each in wire.sample(path) if _not_gone(each)]
    provider = Provider([*conversation, *others])
    client = Client(port)
    with UpstreamStub(provider) as stub:
        environment = {"SSL_CERT_FILE": str(stub.ca_file), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
        (tmp_path / "claude").mkdir()
        hyp.home.mkdir()
        (hyp.home / "config.toml").write_text(
            f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n[redaction]\nkept = true\n'
            f'[[gateway.upstreams]]\nname = "stub"\nbase_url = "{stub.url}"\nprovider = "anthropic"\n'
        )
        half = len(conversation) // 2
        with daemon(hyp, environment) as first:
            attached = hyp.ok("client", "attach", "claude", **environment)
            assert attached["clients"][0]["base_url"] == f"http://127.0.0.1:{port}/claude"
            assert standing(hyp, environment) == ("attached", 0)
            for exchange in conversation[:half]:
                client.sends(exchange)
            eventually(lambda: told(hyp)["gateway"]["recorded"] == half)
            eventually(lambda: standing(hyp, environment) == ("recording", half))
            eventually(lambda: lock_file.is_taken(handover.lock_path(Home(hyp.home))))
            with client.asks_slowly() as (broken, _):
                os.kill(first.pid, signal.SIGKILL)
                assert broken.is_closed(), "it notices at once"
            provider.go_on.set()
        client.sends(others[0])
        eventually(lambda: standing(hyp, environment)[0] == "passing")
        provider.go_on.clear()
        claude_files.write(tmp_path / "claude/projects/-work/imported.jsonl", claude_files.turns("imported", 3))
        with daemon(hyp, {**environment, "HYP_DEV_TELEMETRY": "1"}) as second:
            for exchange in (*conversation[half:], *others):
                client.sends(exchange)
            with client.connect() as connection:
                target = "/claude/v1/messages?beta=true&access_token=planted-query-0005"
                connection.send(_request(target, _asked(f"my key: {API_KEY}"), PLANTED))
                assert API_KEY[20:] in connection.answer()[1].decode(), "what passes is not touched"
            assert stub.seen[-1].header("x-api-key") == PLANTED["x-api-key"]
            with client.asks_slowly() as (last, head):
                second.send_signal(signal.SIGTERM)
                # Asked without a command: what is under way has only so long.
                eventually(lambda: client.is_answered_by() == "fallback")
                provider.go_on.set()
                assert last.body(head) == b"".join(anthropic_events()[1:])
            eventually(lambda: standing(hyp, environment)[0] == "passing")
            _, err = second.communicate(timeout=PATIENCE)
            assert second.returncode == 0, err
        recorded = len(conversation) + len(others) + 2
        hyp.ok("flush")
        assert list(hyp.home.glob("spool/*/rejected/*")) == []
        exchanges = read_lake(Home(hyp.home), EXCHANGES)
        assert len({row["exchange_id"] for row in exchanges}) == len(exchanges) == recorded
        (stopped,) = [row for row in exchanges if row["session_id"] == "session-slowly"]
        assert stopped["response_body"] == b"".join(anthropic_events()).decode(), "whole, though the daemon was stopped"
        messages = read_lake(Home(hyp.home), MESSAGES)
        parts = Counter(row["part_id"] for row in messages)
        assert max(parts.values()) == 1
        assert {row["message_id"] for row in messages} >= expected([*conversation, *others], Seen())
        said = Counter(row["message_id"] for row in messages if row["session_id"] == conversation_id(messages))
        assert set(said) == expected(conversation, Seen()), "no part of it came again under another name"
        assert holding(hyp.home, SECRETS) == {}
        (metrics,) = hyp.home.glob(f"telemetry/metrics-{second.pid}.jsonl")
        assert b"hyp_gateway_overhead_ms" in metrics.read_bytes()
        with (hyp.home / "config.toml").open("a") as config:
            config.write('[flush]\ncold_interval = "1s"\n')
        with daemon(hyp, environment) as third:
            eventually(lambda: told(hyp)["catch_up"]["last_status"] == "ok")
            third.send_signal(signal.SIGTERM)
            third.communicate(timeout=PATIENCE)
        assert hyp.query("SELECT count(*) AS n FROM ai_gateway_messages WHERE session_id = 'imported'") == [{"n": 9}]
        assert hyp.run("verify", "--deep", "--json").code == 0
        assert hyp.ok("client", "detach", "claude", **environment)["clients"][0]["changed"]
        assert standing(hyp, environment)[0] == "detached"


def conversation_id(messages: list[dict[str, Any]]) -> str:
    (session,) = {row["session_id"] for row in messages} & {"8dff60ef-dbf8-402f-ba9e-53656126576b"}
    return str(session)


def standing(hyp: Hyp, environment: dict[str, str]) -> tuple[str, int]:
    (found,) = hyp.ok("client", "status", "claude", **environment)["clients"]
    return found["state"], found["exchanges"]
