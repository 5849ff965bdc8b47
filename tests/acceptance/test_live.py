"""Live recording as a user sees it: the real daemon, a provider over TLS, real clients' requests.

One home, one engine: a client is attached and works, its daemon is killed, it continues to work, and at the end every
part of its conversations is in the lake once, and none of its secrets is stored anywhere.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from hypaware.gateway import handover
from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.home import Home, locks
from hypaware.maintain.purge import verify
from hypaware.privacy.redact import Redaction, load_marker_key
from tests.support import claude_files, exchange_samples, upstream_stub
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.live_gateway import ClientConnection
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually
from tests.support.secrets import redact_exchange
from tests.support.upstream_stub import StubResponse, UpstreamStub, anthropic_events

pytestmark = pytest.mark.spark

CONVERSATION = exchange_samples.SAMPLES / "claude-2.1.325/interactive.ndjson.xz"
OTHERS = [
    exchange_samples.SAMPLES / name
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
    """Replays the real provider's responses; a request for `slowly` waits for the test."""

    def __init__(self, exchanges: list[DecodedExchange]) -> None:
        self._known = {_body(each): each for each in exchanges}
        self.go_on = threading.Event()

    def __call__(self, seen: upstream_stub.ReceivedRequest) -> StubResponse:
        if b"slowly" in seen.body:
            first, *rest = anthropic_events()
            return StubResponse(pieces=(first, self.go_on, *rest))
        if b"planted" in seen.head:
            headers = (*upstream_stub.EVENT_STREAM, ("set-cookie", "planted-set-cookie-0006"))
            return StubResponse(headers=headers, pieces=anthropic_events([API_KEY[:20], API_KEY[20:], " is yours"]))
        found = self._known[seen.body]
        kept = ("content-type", "request-id", "x-request-id")
        headers = tuple((name, value) for name, value in found.response_headers.items() if name in kept)
        if seen.method == "HEAD":
            return StubResponse(found.status or 200, "OK", headers, framing="none")
        return StubResponse(
            found.status or 200, "OK", headers, ((found.response_text or "").encode(),), framing="length"
        )


def _body(exchange: DecodedExchange) -> bytes:
    return (exchange.request_text or "").encode()


def _not_gone(exchange: DecodedExchange) -> bool:
    """Exclude samples of aborted exchanges: they have no complete response to replay."""
    return exchange.error is None


class Client:
    """Replays a real client's requests to the address set by attach."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self) -> ClientConnection:
        return ClientConnection(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE))

    def sends(self, exchange: DecodedExchange) -> None:
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
        """Return which process answers, gateway or fallback; None during the handover."""
        with suppress(OSError, EOFError), self.connect() as connection:
            connection.send(_request(handover.HEALTH_PATH, b"", {}, "GET"))
            return str(json.loads(connection.answer(b"GET")[1])["hypaware"])
        return None

    @contextmanager
    def asks_slowly(self) -> Iterator[tuple[ClientConnection, bytes]]:
        """Return the connection and head of a response in progress."""
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
    """The gateway's port, for the whole test."""
    with held_port() as found:
        yield found


@pytest.fixture
def listener_ends(hyp: Hyp) -> Iterator[None]:
    yield
    path = handover.fallback_lock_path(Home(hyp.home))
    if (pid := locks.lock_holder(path)) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(path))


def expected(home: Path, exchanges: list[DecodedExchange], seen: ConversationCache) -> set[str]:
    """Return the ids of the messages in these exchanges."""
    redaction = Redaction(load_marker_key(Home(home)))
    redacted = [redact_exchange(each, redaction)[0] for each in exchanges]
    return {row["message_id"] for each in redacted for row in project_exchange(each, seen).rows}


def holding(home: Path, secrets: list[str]) -> dict[str, list[str]]:
    """Return the files under the home that contain one of them, decompressed if possible."""
    found: dict[str, list[str]] = {}
    for path in (each for each in home.rglob("*") if each.is_file()):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            # Files of the engine, which it removes itself.
            continue
        if path.suffix == ".parquet":
            content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        elif path.suffix == ".avro":
            with path.open("rb") as file:
                content += "".join(map(str, fastavro.reader(file))).encode()
        there = [secret for secret in secrets if secret.encode() in content]
        if not there and verify.count_occurrences(path, [secret.encode() for secret in secrets]):
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
def test_a_client_keeps_working_through_kills_and_each_part_is_stored_once(hyp: Hyp, tmp_path: Path, port: int) -> None:
    conversation = [each for each in exchange_samples.read_sample(CONVERSATION) if _not_gone(each)]
    others = [each for path in OTHERS for each in exchange_samples.read_sample(path) if _not_gone(each)]
    half = len(conversation) // 2
    provider = Provider([*conversation, *others])
    client = Client(port)
    with UpstreamStub(provider) as stub:
        environment = {"SSL_CERT_FILE": str(stub.ca_file), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
        configure(hyp, tmp_path / "claude", port, stub.url)
        record_until_the_daemon_is_killed(hyp, environment, client, conversation[:half])
        provider.go_on.set()
        client.sends(others[0])
        eventually(lambda: standing(hyp, environment)[0] == "passing")
        provider.go_on.clear()
        claude_files.write(tmp_path / "claude/projects/-work/imported.jsonl", claude_files.turns("imported", 3))
        pid = record_until_the_daemon_is_stopped(
            hyp, environment, client, stub, provider, (*conversation[half:], *others)
        )
        hyp.ok("flush")
        check_exchanges(hyp, recorded=len(conversation) + len(others) + 2)
        check_messages(hyp, conversation, others)
        assert holding(hyp.home, SECRETS) == {}
        (metrics,) = hyp.home.glob(f"telemetry/metrics-{pid}.jsonl")
        assert b"hyp_gateway_overhead_ms" in metrics.read_bytes()
        check_import_by_the_daemon(hyp, environment)
        assert hyp.run("verify", "--deep", "--json").code == 0
        assert hyp.ok("client", "detach", "claude", **environment)["clients"][0]["changed"]
        assert standing(hyp, environment)[0] == "detached"


def configure(hyp: Hyp, claude: Path, port: int, upstream: str) -> None:
    claude.mkdir()
    hyp.home.mkdir()
    (hyp.home / "config.toml").write_text(
        f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n[redaction]\nkept = true\n'
        f'[[gateway.upstreams]]\nname = "stub"\nbase_url = "{upstream}"\nprovider = "anthropic"\n'
    )


def record_until_the_daemon_is_killed(
    hyp: Hyp, environment: dict[str, str], client: Client, exchanges: Sequence[DecodedExchange]
) -> None:
    with daemon(hyp, environment) as process:
        attached = hyp.ok("client", "attach", "claude", **environment)
        assert attached["clients"][0]["base_url"] == f"http://127.0.0.1:{client.port}/claude"
        assert standing(hyp, environment) == ("attached", 0)
        for exchange in exchanges:
            client.sends(exchange)
        eventually(lambda: told(hyp)["gateway"]["recorded"] == len(exchanges))
        eventually(lambda: standing(hyp, environment) == ("recording", len(exchanges)))
        eventually(lambda: locks.is_locked(handover.fallback_lock_path(Home(hyp.home))))
        with client.asks_slowly() as (broken, _):
            os.kill(process.pid, signal.SIGKILL)
            assert broken.is_closed(), "the client notices at once"


def record_until_the_daemon_is_stopped(
    hyp: Hyp,
    environment: dict[str, str],
    client: Client,
    stub: UpstreamStub,
    provider: Provider,
    exchanges: Sequence[DecodedExchange],
) -> int:
    """Stop the daemon during a response, which the client still receives completely. Return the daemon's pid."""
    with daemon(hyp, {**environment, "HYP_DEV_TELEMETRY": "1"}) as process:
        for exchange in exchanges:
            client.sends(exchange)
        with client.connect() as connection:
            target = "/claude/v1/messages?beta=true&access_token=planted-query-0005"
            connection.send(_request(target, _asked(f"my key: {API_KEY}"), PLANTED))
            assert API_KEY[20:] in connection.answer()[1].decode(), "forwarded bytes are unchanged"
        assert stub.seen[-1].header("x-api-key") == PLANTED["x-api-key"]
        with client.asks_slowly() as (last, head):
            process.send_signal(signal.SIGTERM)
            # Asked without a command: open responses have a limited time.
            eventually(lambda: client.is_answered_by() == "fallback")
            provider.go_on.set()
            assert last.body(head) == b"".join(anthropic_events()[1:])
        eventually(lambda: standing(hyp, environment)[0] == "passing")
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        pid: int = process.pid
        return pid


def check_exchanges(hyp: Hyp, recorded: int) -> None:
    assert list(hyp.home.glob("spool/*/rejected/*")) == []
    exchanges = read_lake(Home(hyp.home), EXCHANGES)
    assert len({row["exchange_id"] for row in exchanges}) == len(exchanges) == recorded
    (stopped,) = [row for row in exchanges if row["session_id"] == "session-slowly"]
    assert stopped["response_body"] == b"".join(anthropic_events()).decode(), "complete although the daemon was stopped"


def check_messages(hyp: Hyp, conversation: list[DecodedExchange], others: list[DecodedExchange]) -> None:
    messages = read_lake(Home(hyp.home), MESSAGES)
    assert max(Counter(row["part_id"] for row in messages).values()) == 1
    assert {row["message_id"] for row in messages} >= expected(hyp.home, [*conversation, *others], ConversationCache())
    said = {row["message_id"] for row in messages if row["session_id"] == conversation_id(messages)}
    assert said == expected(hyp.home, conversation, ConversationCache()), "no part is stored under a second id"


def check_import_by_the_daemon(hyp: Hyp, environment: dict[str, str]) -> None:
    with (hyp.home / "config.toml").open("a") as config:
        config.write('[flush]\ncold_interval = "1s"\n')
    with daemon(hyp, environment) as process:
        eventually(lambda: told(hyp)["catch_up"]["last_status"] == "ok")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert hyp.query("SELECT count(*) AS n FROM ai_gateway_messages WHERE session_id = 'imported'") == [{"n": 9}]


def conversation_id(messages: list[dict[str, Any]]) -> str:
    (session,) = {row["session_id"] for row in messages} & {"8dff60ef-dbf8-402f-ba9e-53656126576b"}
    return str(session)


def standing(hyp: Hyp, environment: dict[str, str]) -> tuple[str, int]:
    (found,) = hyp.ok("client", "status", "claude", **environment)["clients"]
    return found["state"], found["exchanges"]
