"""Tokens are obtained, stored, renewed and rejected; they are never shown and never sent elsewhere."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from aiohttp import web

from hypaware.export.sink import DestinationBusy, DestinationDenied, DestinationUnreachable, SinkSettings
from hypaware.export.sinks.forward import credentials
from hypaware.export.sinks.forward.credentials import ServerCredentials
from hypaware.export.sinks.forward.http_client import HttpClient
from hypaware.home import Home
from tests.support import processes
from tests.support.forward_servers import GATEWAY, always, chunk, lines, opened, served, settings
from tests.support.plain_server import BOOTSTRAP, INGEST, REFRESH, TOKEN, PlainServer

HOUR, DAY = 3600.0, 86400.0
SECRET = "a-key-of-the-server-that-is-long-enough"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    return path


def kept_file(home: Home) -> Path:
    return home.delivery / "tokens" / "team.json"


def ship(made: SinkSettings, *, times: int = 1) -> None:
    async def work() -> None:
        async with opened(made) as sink:
            for number in range(times):
                await sink.ship(chunk(number, number + 1), lines(), 0)

    asyncio.run(work())


def paths(server: PlainServer) -> list[str]:
    return [request.path for request in server.requests]


def signed(expires_in: float, **claims: Any) -> str:
    return jwt.encode({"exp": int(time.time() + expires_in), **claims}, SECRET, "HS256")


def test_a_bootstrap_token_is_exchanged_once_and_the_signed_token_is_stored(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)), times=2)
        ship(settings(home, server.url, token_file=str(token_file)))

    assert paths(server).count(BOOTSTRAP) == 1
    assert len(server.rows()) == 6
    (bootstrap,) = server.received(BOOTSTRAP)
    received = orjson.loads(bootstrap.body)
    assert "Authorization" not in bootstrap.headers
    assert received.keys() == {"bootstrap_token", "gateway_id", "gateway_secret", "host"}
    assert (received["bootstrap_token"], received["gateway_id"]) == (TOKEN, GATEWAY)
    assert received["gateway_secret"] == (home.delivery / "gateway.secret").read_text()


def test_stored_tokens_are_readable_by_their_owner_only(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.delivery.rglob("*")}
    assert modes == {"tokens": 0o700, "team.json": 0o600, "gateway.secret": 0o600}


def test_a_token_can_come_from_the_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    with PlainServer() as server:
        ship(settings(home, server.url, token_env="TEAM_TOKEN"))

    assert len(server.rows()) == 3


def test_a_token_file_may_be_in_the_home(home: Home) -> None:
    home.root.mkdir()
    (home.root / "token").write_text(TOKEN)
    with PlainServer() as server:
        ship(settings(home, server.url, token_file="token"))

    assert len(server.rows()) == 3


@pytest.mark.hazard(30)
def test_a_token_that_expires_during_a_round_is_replaced(home: Home, token_file: Path) -> None:
    async def work(server: PlainServer) -> None:
        async with opened(settings(home, server.url, token_file=str(token_file))) as sink:
            await sink.ship(chunk(0, 1), lines(), 0)
            server.forget_tokens()
            await sink.ship(chunk(1, 2), lines(), 0)

    with PlainServer() as server:
        asyncio.run(work(server))

    assert [batch.id for batch in server.batches] == [chunk(0, 1).id, chunk(1, 2).id]
    # First asked for a refresh with the old token, which this server rejects.
    assert [request.status for request in server.received(INGEST)] == [202, 401, 202]
    assert paths(server)[-4:] == [f"{INGEST}proxy", REFRESH, BOOTSTRAP, f"{INGEST}proxy"]


@pytest.mark.hazard(30)
def test_streams_share_one_renewal(home: Home, token_file: Path) -> None:
    async def work(server: PlainServer) -> None:
        async with opened(settings(home, server.url, token_file=str(token_file))) as sink:
            server.forget_tokens()
            await asyncio.gather(*(sink.ship(chunk(number, number + 1), lines(), 0) for number in range(12)))

    with PlainServer() as server:
        asyncio.run(work(server))

    assert len(server.batches) == 12
    assert paths(server).count(BOOTSTRAP) == 2
    assert paths(server).count(REFRESH) == 1


def test_a_rejected_request_is_retried_only_once(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        server.answer(401, 100)
        with pytest.raises(DestinationDenied, match="rejects even a new token of the sink team") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "token_refused"
    assert denied.value.repair
    assert len(server.received(INGEST)) == 2


def test_a_wrong_bootstrap_token_is_denied_with_the_repair(home: Home, token_file: Path) -> None:
    token_file.write_text("not-the-token-of-this-server")
    with PlainServer() as server, pytest.raises(DestinationDenied, match="401 invalid_token") as denied:
        ship(settings(home, server.url, token_file=str(token_file)))

    assert str(token_file) in str(denied.value.repair)


def test_a_new_token_in_the_file_applies_immediately(home: Home, token_file: Path) -> None:
    """The user replaces the token while a sink is open, or after the old one was exchanged."""

    async def work(server: PlainServer) -> None:
        async with opened(settings(home, server.url, token_file=str(token_file))) as sink:
            server.token = "another-bootstrap-token"
            with pytest.raises(DestinationDenied):
                await sink.ship(chunk(0, 1), lines(), 0)
            token_file.write_text("another-bootstrap-token")
            await sink.ship(chunk(0, 1), lines(), 0)

    with PlainServer() as server:
        asyncio.run(work(server))
        kept = orjson.loads(kept_file(home).read_bytes())
        server.token = TOKEN
        token_file.write_text(TOKEN)
        ship(settings(home, server.url, token_file=str(token_file)))

    assert len(server.batches) == 1
    assert orjson.loads(kept_file(home).read_bytes())["origin"] != kept["origin"]


def test_a_stored_token_is_never_sent_to_another_address(home: Home, token_file: Path) -> None:
    with PlainServer() as first, PlainServer() as second:
        ship(settings(home, first.url, token_file=str(token_file)))
        first_jwt = orjson.loads(kept_file(home).read_bytes())["jwt"]
        ship(settings(home, second.url, token_file=str(token_file)))

    assert paths(second)[0] == BOOTSTRAP
    assert all(first_jwt not in str(request.headers) for request in second.requests)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"v":1}', b"\xff"])
def test_a_damaged_stored_token_is_replaced(home: Home, token_file: Path, damage: bytes) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))
        kept_file(home).write_bytes(damage)
        ship(settings(home, server.url, token_file=str(token_file)))

    assert paths(server).count(BOOTSTRAP) == 2
    assert orjson.loads(kept_file(home).read_bytes())["jwt"]


def signing(server: dict[str, Any]) -> dict[str, Any]:
    """A server that accepts any token signed with its key, until `refused`; `seen` lists the tokens it received."""
    seen: list[str] = server.setdefault("seen", [])

    def is_good(request: web.Request) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        seen.append(token)
        try:
            return bool(jwt.decode(token, SECRET, ["HS256"])) and token not in server.get("refused", ())
        except jwt.InvalidTokenError:
            return False

    async def ingest(request: web.Request) -> web.Response:
        return web.Response(status=202 if is_good(request) else 401)

    async def refresh(request: web.Request) -> web.Response:
        server["refreshes"] = server.get("refreshes", 0) + 1
        if not is_good(request):
            return web.Response(status=401)
        return web.json_response({"jwt": signed(7 * DAY, n=server["refreshes"]), "expires_at": time.time() + 7 * DAY})

    return {f"POST {INGEST}proxy": ingest, f"POST {REFRESH}": refresh}


def test_a_configured_signed_token_is_sent_unchanged(home: Home, token_file: Path) -> None:
    token = signed(30 * DAY)
    token_file.write_text(token)
    server: dict[str, Any] = {}

    async def work() -> None:
        async with served(signing(server)) as url, opened(settings(home, url, token_file=str(token_file))) as sink:
            await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())

    assert server["seen"] == [token]
    assert not home.delivery.exists()


def test_a_signed_token_that_expires_within_a_day_is_renewed_and_stored(home: Home, token_file: Path) -> None:
    token = signed(23 * HOUR)
    token_file.write_text(token)
    server: dict[str, Any] = {}

    async def work() -> None:
        async with served(signing(server)) as url:
            for _ in range(2):
                async with opened(settings(home, url, token_file=str(token_file))) as sink:
                    await sink.ship(chunk(), lines(), 0)
                    await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())

    assert server["refreshes"] == 1
    assert server["seen"].count(token) == 1
    assert orjson.loads(kept_file(home).read_bytes())["jwt"] == server["seen"][-1] != token


def test_an_expired_signed_token_is_denied_with_the_repair(home: Home, token_file: Path) -> None:
    token_file.write_text(signed(-DAY))

    async def work() -> None:
        async with served(signing({})) as url, opened(settings(home, url, token_file=str(token_file))) as sink:
            with pytest.raises(
                DestinationDenied, match="signed token in the config is invalid or has expired"
            ) as denied:
                await sink.ship(chunk(), lines(), 0)
            assert denied.value.kind == "token_refused"
            assert str(token_file) in str(denied.value.repair)

    asyncio.run(work())


def test_the_old_token_is_used_while_a_server_cannot_renew_it(home: Home, token_file: Path) -> None:
    token_file.write_text(signed(HOUR))
    server: dict[str, Any] = {}
    routes = signing(server)
    del routes[f"POST {REFRESH}"]

    async def work() -> None:
        async with served(routes) as url, opened(settings(home, url, token_file=str(token_file))) as sink:
            await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())

    assert len(server["seen"]) == 1


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, "token_missing"),
        ("", "token_missing"),
        (" \n", "token_missing"),
        ("a\nb", "token_malformed"),
        ("x" * 20_000, "token_malformed"),
        ("tök-en", "token_malformed"),
    ],
)
def test_a_token_file_without_a_token_is_denied_before_anything_is_sent(
    home: Home, token_file: Path, content: str | None, kind: str
) -> None:
    token_file.unlink()
    if content is not None:
        token_file.write_text(content)
    with PlainServer() as server:
        with pytest.raises(DestinationDenied) as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

        assert (denied.value.kind, server.requests) == (kind, [])
        assert str(token_file) in str(denied.value)
        assert denied.value.repair


def test_a_folder_instead_of_a_token_file_is_denied(home: Home, tmp_path: Path) -> None:
    with PlainServer() as server, pytest.raises(DestinationDenied, match="not a regular file"):
        ship(settings(home, server.url, token_file=str(tmp_path)))


def test_a_missing_variable_is_named(home: Home) -> None:
    with PlainServer() as server, pytest.raises(DestinationDenied, match="TEAM_TOKEN_OF_NOBODY") as denied:
        ship(settings(home, server.url, token_env="TEAM_TOKEN_OF_NOBODY"))

    assert denied.value.kind == "token_missing"


def test_without_a_configured_token_none_is_sent_and_a_401_is_explained(home: Home) -> None:
    with PlainServer() as server:
        with pytest.raises(DestinationDenied, match="set token_file") as denied:
            ship(settings(home, server.url))

        assert denied.value.kind == "token_missing"
        assert "hyp config set sinks.team.token_file" in str(denied.value.repair)
        assert all("Authorization" not in request.headers for request in server.requests)
        assert BOOTSTRAP not in paths(server)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, DestinationBusy),
        (503, DestinationBusy),
        (500, DestinationUnreachable),
        (404, DestinationDenied),
        (301, DestinationDenied),
        (403, DestinationDenied),
    ],
)
def test_a_failed_bootstrap_reports_the_reason(
    home: Home, token_file: Path, status: int, kind: type[Exception]
) -> None:
    with PlainServer() as server:
        server.answer(status, under=BOOTSTRAP, headers={"Retry-After": "7"})
        with pytest.raises(kind) as error:
            ship(settings(home, server.url, token_file=str(token_file)))

    if isinstance(error.value, DestinationBusy):
        assert error.value.after == 7
    assert not kept_file(home).exists()


@pytest.mark.parametrize("document", [{}, [], {"jwt": 7}, {"jwt": ""}, {"jwt": "a\r\nX: y"}, {"jwt": "x" * 20_000}])
def test_a_token_response_without_a_valid_token_is_unreachable(home: Home, token_file: Path, document: object) -> None:
    async def work() -> None:
        async with served({f"POST {BOOTSTRAP}": always(document)}) as url:
            with pytest.raises(DestinationUnreachable, match="without a token"):
                async with opened(settings(home, url, token_file=str(token_file))):
                    pass

    asyncio.run(work())

    assert not kept_file(home).exists()


def test_the_error_for_an_id_that_is_bound_to_another_home_names_the_repair(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        server.answer(403, under=BOOTSTRAP, body=b'{"error":"gateway_bound"}')
        with pytest.raises(DestinationDenied, match="has bound the id") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "gateway_bound"
    assert "gateway.secret" in str(denied.value.repair)


def test_a_token_that_cannot_be_stored_is_not_used(home: Home, token_file: Path) -> None:
    """On a full disk, for example, every round would silently begin with a bootstrap."""
    home.delivery.mkdir(parents=True)
    (home.delivery / "tokens").write_text("in the way")
    with PlainServer() as server, pytest.raises(DestinationDenied, match="cannot be stored: Not a directory") as denied:
        ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "token_not_kept"


def test_no_message_contains_a_secret(home: Home, token_file: Path) -> None:
    """Not even if the server echoes them."""

    async def echo(request: web.Request) -> web.Response:
        messages = f"{dict(request.headers)} {(await request.read()).decode()}"
        status = {"/v1/identity/refresh": 500, f"{INGEST}proxy": 422}.get(request.path, 400)
        return web.json_response(
            {"error": messages, "detail": messages}, status=status, headers={"Location": messages[:200]}
        )

    async def work() -> list[str]:
        shown = []
        routes = {f"POST {BOOTSTRAP}": echo, f"POST {INGEST}proxy": echo, f"POST {REFRESH}": echo}
        async with served(routes) as url:
            made = settings(home, url, token_file=str(token_file))
            with pytest.raises(DestinationDenied) as denied:
                async with opened(made):
                    pass
            shown += [str(denied.value), str(denied.value.kind), str(denied.value.repair)]
            token_file.write_text(signed(30 * DAY))
            async with opened(settings(home, url, token_file=str(token_file))) as sink:
                with pytest.raises(Exception, match="422") as refused:
                    await sink.ship(chunk(), lines(), 0)
            return [*shown, str(refused.value)]

    shown = asyncio.run(work())

    for secret in (TOKEN, token_file.read_text(), (home.delivery / "gateway.secret").read_text()):
        assert all(secret not in text and secret[:12] not in text for text in shown)
    assert "***" in "".join(shown)


@dataclass
class TokenServer:
    """A server with a token lifetime, a local clock that the test moves, and a record of requests."""

    life: float
    ahead: float = 0.0
    """Offset of the server's clock, which it reports in its Date header."""
    now: float = field(default_factory=time.time)
    failing: int | None = None
    received: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.received.append(request.path.rpartition("/")[2])
        if self.failing:
            return web.Response(status=self.failing)
        given = {"jwt": f"token-number-{len(self.received)}", "expires_at": self.now + self.ahead + self.life}
        return web.json_response(given, headers={"Date": formatdate(self.now + self.ahead, usegmt=True)})

    @asynccontextmanager
    async def credentials(self, home: Home, token_file: Path) -> AsyncIterator[ServerCredentials]:
        async with served({f"POST {BOOTSTRAP}": self.answer, f"POST {REFRESH}": self.answer}) as url:
            self.wire, self.url = HttpClient(url), url
            await self.wire.open()
            yield self.again(home, token_file)
            await self.wire.close()

    def again(self, home: Home, token_file: Path) -> ServerCredentials:
        """Return new credentials, as a later round creates them."""
        made = settings(home, self.url, token_file=str(token_file))
        return ServerCredentials(made, self.url, "host", self.wire, lambda: self.now)


@pytest.mark.parametrize("ahead", [0.0, 30 * DAY, -30 * DAY])
def test_a_token_is_renewed_in_its_last_day_with_any_clock(home: Home, token_file: Path, ahead: float) -> None:
    server = TokenServer(7 * DAY, ahead)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for _ in range(10):
                await credentials.get_token()
            assert server.received == ["bootstrap"]
            server.now += 6 * DAY - 60
            await credentials.get_token()
            assert server.received == ["bootstrap"]
            server.now += 120
            for _ in range(10):
                await credentials.get_token()
            assert server.received == ["bootstrap", "refresh"]

    asyncio.run(work())


def test_a_stored_token_in_its_last_day_is_renewed_at_its_first_use(home: Home, token_file: Path) -> None:
    async def work() -> None:
        server = TokenServer(7 * DAY)
        async with server.credentials(home, token_file) as credentials:
            await credentials.get_token()
            server.now += 6.5 * DAY
            await server.again(home, token_file).get_token()
        assert server.received == ["bootstrap", "refresh"]

    asyncio.run(work())


def test_short_lived_tokens_are_not_renewed_before_each_request(home: Home, token_file: Path) -> None:
    server = TokenServer(HOUR)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for _ in range(60):
                await credentials.get_token()
                server.now += 60

    asyncio.run(work())

    assert server.received == ["bootstrap", "refresh"]


def test_a_changed_clock_does_not_stop_delivery(home: Home, token_file: Path) -> None:
    server = TokenServer(7 * DAY)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for moved in (-400 * DAY, 800 * DAY, 0.0):
                server.now += moved
                assert await credentials.get_token()

    asyncio.run(work())

    assert len(server.received) <= 3


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_failed_early_renewal_keeps_the_token(home: Home, token_file: Path, status: int) -> None:
    server = TokenServer(7 * DAY)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            token = await credentials.get_token()
            server.now += 6.5 * DAY
            server.failing = status
            for _ in range(5):
                assert await credentials.get_token() == token
            # A failing server is not asked again for a while.
            assert server.received.count("refresh") == 1
            server.failing = None
            server.now += 3600
            assert await credentials.get_token() != token

    asyncio.run(work())


def test_concurrent_processes_generate_the_homes_secret_once(home: Home, tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.mkdir()

    def draw(number: int) -> Callable[[], object]:
        return lambda: (found / str(number)).write_text(credentials.load_gateway_secret(home))

    assert set(processes.together([draw(number) for number in range(8)])) == {0}

    assert {path.read_text() for path in found.iterdir()} == {(home.delivery / "gateway.secret").read_text()}
    assert [path.name for path in home.delivery.iterdir()] == ["gateway.secret"]


def test_a_damaged_home_secret_is_not_replaced(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))
        (home.delivery / "gateway.secret").write_text("")
        kept_file(home).unlink()
        with pytest.raises(DestinationDenied, match="by which servers recognise the home") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "gateway_secret"
    assert (home.delivery / "gateway.secret").read_text() == ""


SHIP_ONE = """
import asyncio, sys
from hypaware.home import Home
from tests.support.forward_servers import chunk, lines, opened, settings
async def work():
    async with opened(settings(Home.from_environment(), sys.argv[1], token_file=sys.argv[2])) as sink:
        await sink.ship(chunk(), lines(), 0)
asyncio.run(work())
"""


@pytest.mark.parametrize(
    "point",
    ["export.token.before-keep", "export.token.after-keep", "export.secret.before-write", "export.secret.after-write"],
)
def test_a_process_killed_while_it_stores_its_token_is_recovered(home: Home, token_file: Path, point: str) -> None:
    with PlainServer() as server:
        assert processes.was_killed(processes.run(SHIP_ONE, home, server.url, token_file, crash_at=point))
        assert server.rows() == []
        processes.succeed(SHIP_ONE, home, server.url, token_file)

    assert len(server.rows()) == 3
    secrets = {orjson.loads(request.body)["gateway_secret"] for request in server.received(BOOTSTRAP)}
    assert secrets == {(home.delivery / "gateway.secret").read_text()}
