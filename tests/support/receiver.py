"""A real server on a loopback port, and gateways that send to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from hypaware.home import Home
from hypaware.server import auth
from hypaware.server.app import ServerContext
from hypaware.server.limits import ServerLimits
from hypaware.server.run import ServerOptions, open_server, serve
from hypaware.spool import segments
from tests.support.command import Hyp
from tests.support.processes import PATIENCE
from tests.support.rows import DATASET, MESSAGES, rows

# A nearly full disk must not fail the tests; tests of full disks set their own limit.
LIMITS = ServerLimits(keep_free_bytes=0)
LIFE = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


@dataclass(frozen=True)
class Client:
    """A client of the server; `jwt` is its signed token."""

    url: str
    jwt: str | None = None

    def ask(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Reply:
        """Send one request on a new connection; `X_Hyp_Source="a"` sets the header X-Hyp-Source."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=PATIENCE)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if self.jwt and "Authorization" not in sent:
                sent["Authorization"] = f"Bearer {self.jwt}"
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def bootstrap(self, **requested: Any) -> Reply:
        return self.ask("POST", "/v1/identity/bootstrap", json.dumps(requested).encode())

    def send(self, batch_id: str, body: bytes, **headers: str) -> Reply:
        common = {"Content_Type": "application/x-ndjson", "X_Hyp_Batch_Id": batch_id}
        return self.ask("POST", "/v1/ingest/proxy", body, **{**common, **headers})


@dataclass(frozen=True)
class Gateway(Client):
    """An enrolled gateway."""

    gateway_id: str = "gw-1"
    life: str = LIFE

    def rows(self, count: int, start: int = 0, **columns: Any) -> bytes:
        return ndjson(rows(count, start, gateway_id=self.gateway_id, **columns))

    def deliver(self, after: int, last: int, source: str = "claude", *, id: str | None = None, **headers: str) -> Reply:
        """Send the rows of a range under the range's batch id."""
        body = self.rows(last - after, after + 1, client_name=source)
        return self.send(
            id or f"{self.life}/{quote(source)}/{after}-{last}",
            body,
            **{**self.says(source), "X_Hyp_Seq_Range": f"{after}-{last}", **headers},
        )

    def says(self, source: str = "claude") -> dict[str, str]:
        return {
            "X_Hyp_Gateway": self.gateway_id,
            "X_Hyp_Incarnation": self.life,
            "X_Hyp_Source": quote(source, safe=""),
        }

    def watermark(self, source: str = "claude", **headers: str) -> Any:
        query = f"source={quote(source, safe='')}&incarnation={self.life}"
        answer = self.ask("GET", f"/v1/ingest/proxy/watermark?{query}", **headers)
        assert answer.status == 200, answer
        return answer.json

    def landed(self, batch_id: str) -> bool:
        answer = self.ask("GET", f"/v1/ingest/proxy/batches/{quote(batch_id, safe='')}", X_Hyp_Incarnation=self.life)
        assert answer.status in (200, 404), answer
        return answer.status == 200

    def reborn(self, life: str) -> Gateway:
        return replace(self, life=life)


@dataclass
class Server:
    home: Home
    url: str
    parts: ServerContext
    token: str

    @property
    def client(self) -> Client:
        return Client(self.url)

    def enrolled(self, gateway_id: str = "gw-1", token: str | None = None) -> Gateway:
        return enrol(self.url, token or self.token, gateway_id)

    def plain(self, token: str | None = None) -> Client:
        """Return a client of the published contract, which has no gateway id."""
        answer = self.client.bootstrap(bootstrap_token=token or self.token)
        assert answer.status == 200, answer
        return Client(self.url, answer.json["jwt"])


@contextmanager
def served(home: Home, limits: ServerLimits = LIMITS, **options: Any) -> Iterator[Server]:
    """Run a server in a thread; it drains when the block ends."""
    chosen = ServerOptions(port=0, limits=limits, revocation_seconds=0.0, **options)
    token, _ = auth.create_token(home, "tests")
    with open_server(home, chosen) as parts:
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()
        address: Future[str] = Future()

        def live() -> None:
            with closing(loop):
                try:
                    loop.run_until_complete(serve(parts, chosen, address.set_result, stop))
                except BaseException as error:
                    address.set_exception(error)

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield Server(home, address.result(60), parts, token)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(PATIENCE)
            assert not thread.is_alive()


@contextmanager
def running(home: Home, crash_at: str | None = None) -> Iterator[tuple[str | None, subprocess.Popen[bytes]]]:
    """Run `hyp server run` and yield its address, or None if it died before it listened."""
    extra = {"HYP_CRASH_AT": crash_at} if crash_at else {}
    process = Hyp(home.root).start("server", "run", "--listen", "127.0.0.1:0", "--no-flush", **extra)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    try:
        line = process.stdout.readline().decode()
        yield line.removeprefix("listening on ").strip() or None, process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def enrol(url: str, token: str, name: str) -> Gateway:
    requested = {"gateway_id": name, "gateway_secret": f"the secret of {name}", "host": f"{name}.local"}
    answer = Client(url).bootstrap(bootstrap_token=token, **requested)
    assert answer.status == 200, answer
    return Gateway(url, answer.json["jwt"], name)


def ndjson(some: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in some)


def stored(home: Home) -> list[str]:
    """Return the message ids of every row that a flush would commit, validated as flush does."""
    return [
        segments.decode_line(MESSAGES, line, ordinal)["message_id"]
        for segment in segments.list_sealed_segments(segments.spool_folder(home, DATASET))
        for ordinal, line in enumerate(segment.path.read_bytes().splitlines(keepends=True))
    ]


def messages(numbers: range) -> list[str]:
    return [f"message-{number}" for number in numbers]


def incoming_files(home: Home) -> list[str]:
    folder = segments.spool_folder(home, DATASET).path / "incoming"
    return sorted(path.name for path in folder.iterdir())
