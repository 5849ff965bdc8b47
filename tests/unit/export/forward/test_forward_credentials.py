"""Tokens: got, kept, renewed, refused; never shown, never sent elsewhere."""

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

from hypaware.export.sink import Busy, Denied, SinkSettings, Unreachable
from hypaware.export.sinks.forward import tokens
from hypaware.export.sinks.forward.credentials import Credentials
from hypaware.export.sinks.forward.wire import Wire
from hypaware.home import Home
from tests import processes
from tests.plain_server import BOOTSTRAP, INGEST, REFRESH, TOKEN, PlainServer
from tests.unit.export.forward.forwarding import GATEWAY, always, chunk, lines, opened, served, settings

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


def test_a_bootstrap_token_is_exchanged_once_and_the_signed_one_is_kept(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)), times=2)
        ship(settings(home, server.url, token_file=str(token_file)))

    assert paths(server).count(BOOTSTRAP) == 1
    assert len(server.rows()) == 6
    (bootstrap,) = server.asked(BOOTSTRAP)
    asked = orjson.loads(bootstrap.body)
    assert "Authorization" not in bootstrap.headers
    assert asked.keys() == {"bootstrap_token", "gateway_id", "gateway_secret", "host"}
    assert (asked["bootstrap_token"], asked["gateway_id"]) == (TOKEN, GATEWAY)
    assert asked["gateway_secret"] == (home.delivery / "gateway.secret").read_text()


def test_what_is_kept_is_only_for_its_owner(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.delivery.rglob("*")}
    assert modes == {"tokens": 0o700, "team.json": 0o600, "gateway.secret": 0o600}


def test_a_token_from_the_environment_serves_as_well(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    with PlainServer() as server:
        ship(settings(home, server.url, token_env="TEAM_TOKEN"))

    assert len(server.rows()) == 3


def test_a_token_file_may_lie_in_the_home(home: Home) -> None:
    home.root.mkdir()
    (home.root / "token").write_text(TOKEN)
    with PlainServer() as server:
        ship(settings(home, server.url, token_file="token"))

    assert len(server.rows()) == 3


@pytest.mark.hazard(30)
def test_a_token_that_dies_in_the_middle_of_a_round_is_replaced_and_nothing_is_lost(
    home: Home, token_file: Path
) -> None:
    async def work(server: PlainServer) -> None:
        async with opened(settings(home, server.url, token_file=str(token_file))) as sink:
            await sink.ship(chunk(0, 1), lines(), 0)
            server.forget_tokens()
            await sink.ship(chunk(1, 2), lines(), 0)

    with PlainServer() as server:
        asyncio.run(work(server))

    assert [batch.id for batch in server.batches] == [chunk(0, 1).id, chunk(1, 2).id]
    # Asked for a new one with the old one first, which this server does not take.
    assert [request.status for request in server.asked(INGEST)] == [202, 401, 202]
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


def test_a_refused_request_is_tried_again_only_once(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        server.answer(401, 100)
        with pytest.raises(Denied, match="rejects even a new token of the sink team") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "token_refused"
    assert denied.value.repair
    assert len(server.asked(INGEST)) == 2


def test_a_wrong_bootstrap_token_is_denied_with_the_way_out(home: Home, token_file: Path) -> None:
    token_file.write_text("not-the-token-of-this-server")
    with PlainServer() as server, pytest.raises(Denied, match="401 invalid_token") as denied:
        ship(settings(home, server.url, token_file=str(token_file)))

    assert str(token_file) in str(denied.value.repair)


def test_a_new_token_in_the_file_counts_at_once(home: Home, token_file: Path) -> None:
    """The user repairs it while a sink is open, or after the old one was exchanged."""

    async def work(server: PlainServer) -> None:
        async with opened(settings(home, server.url, token_file=str(token_file))) as sink:
            server.token = "another-bootstrap-token"
            with pytest.raises(Denied):
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


def test_a_kept_token_is_never_sent_to_another_address(home: Home, token_file: Path) -> None:
    with PlainServer() as first, PlainServer() as second:
        ship(settings(home, first.url, token_file=str(token_file)))
        first_jwt = orjson.loads(kept_file(home).read_bytes())["jwt"]
        ship(settings(home, second.url, token_file=str(token_file)))

    assert paths(second)[0] == BOOTSTRAP
    assert all(first_jwt not in str(request.headers) for request in second.requests)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"v":1}', b"\xff"])
def test_a_damaged_token_file_of_ours_is_replaced(home: Home, token_file: Path, damage: bytes) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))
        kept_file(home).write_bytes(damage)
        ship(settings(home, server.url, token_file=str(token_file)))

    assert paths(server).count(BOOTSTRAP) == 2
    assert orjson.loads(kept_file(home).read_bytes())["jwt"]


def signing(server: dict[str, Any]) -> dict[str, Any]:
    """A server that takes any token signed with its key, until `refused`; says what it saw in `seen`."""
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


def test_a_signed_token_is_sent_as_it_is(home: Home, token_file: Path) -> None:
    token = signed(30 * DAY)
    token_file.write_text(token)
    server: dict[str, Any] = {}

    async def work() -> None:
        async with served(signing(server)) as url, opened(settings(home, url, token_file=str(token_file))) as sink:
            await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())

    assert server["seen"] == [token]
    assert not home.delivery.exists()


def test_a_signed_token_that_ends_within_a_day_is_renewed_and_the_new_one_is_kept(home: Home, token_file: Path) -> None:
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


def test_a_signed_token_that_is_over_is_denied_with_the_way_out(home: Home, token_file: Path) -> None:
    token_file.write_text(signed(-DAY))

    async def work() -> None:
        async with served(signing({})) as url, opened(settings(home, url, token_file=str(token_file))) as sink:
            with pytest.raises(Denied, match="signed token in the config is invalid or has expired") as denied:
                await sink.ship(chunk(), lines(), 0)
            assert denied.value.kind == "token_refused"
            assert str(token_file) in str(denied.value.repair)

    asyncio.run(work())


def test_a_server_that_cannot_renew_is_served_with_the_old_token_while_it_lasts(home: Home, token_file: Path) -> None:
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
        with pytest.raises(Denied) as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

        assert (denied.value.kind, server.requests) == (kind, [])
        assert str(token_file) in str(denied.value)
        assert denied.value.repair


def test_a_folder_in_the_place_of_the_token_file_is_denied(home: Home, tmp_path: Path) -> None:
    with PlainServer() as server, pytest.raises(Denied, match="not a regular file"):
        ship(settings(home, server.url, token_file=str(tmp_path)))


def test_a_missing_variable_is_named(home: Home) -> None:
    with PlainServer() as server, pytest.raises(Denied, match="TEAM_TOKEN_OF_NOBODY") as denied:
        ship(settings(home, server.url, token_env="TEAM_TOKEN_OF_NOBODY"))

    assert denied.value.kind == "token_missing"


def test_without_a_configured_token_nothing_is_sent_along_and_a_demand_for_one_is_explained(home: Home) -> None:
    with PlainServer() as server:
        with pytest.raises(Denied, match="set token_file") as denied:
            ship(settings(home, server.url))

        assert denied.value.kind == "token_missing"
        assert "hyp config set sinks.team.token_file" in str(denied.value.repair)
        assert all("Authorization" not in request.headers for request in server.requests)
        assert BOOTSTRAP not in paths(server)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, Busy), (503, Busy), (500, Unreachable), (404, Denied), (301, Denied), (403, Denied)]
)
def test_a_bootstrap_that_fails_says_why(home: Home, token_file: Path, status: int, kind: type[Exception]) -> None:
    with PlainServer() as server:
        server.answer(status, under=BOOTSTRAP, headers={"Retry-After": "7"})
        with pytest.raises(kind) as error:
            ship(settings(home, server.url, token_file=str(token_file)))

    if isinstance(error.value, Busy):
        assert error.value.after == 7
    assert not kept_file(home).exists()


@pytest.mark.parametrize("document", [{}, [], {"jwt": 7}, {"jwt": ""}, {"jwt": "a\r\nX: y"}, {"jwt": "x" * 20_000}])
def test_an_answer_without_a_usable_token_is_no_answer(home: Home, token_file: Path, document: object) -> None:
    async def work() -> None:
        async with served({f"POST {BOOTSTRAP}": always(document)}) as url:
            with pytest.raises(Unreachable, match="without a token"):
                async with opened(settings(home, url, token_file=str(token_file))):
                    pass

    asyncio.run(work())

    assert not kept_file(home).exists()


def test_a_home_that_another_one_speaks_for_is_told_what_is_missing(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        server.answer(403, under=BOOTSTRAP, body=b'{"error":"gateway_bound"}')
        with pytest.raises(Denied, match="has bound the id") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "gateway_bound"
    assert "gateway.secret" in str(denied.value.repair)


def test_a_token_that_cannot_be_kept_is_not_used(home: Home, token_file: Path) -> None:
    """A full disk, for example: every round would begin with a bootstrap, and nobody would know why."""
    home.delivery.mkdir(parents=True)
    (home.delivery / "tokens").write_text("in the way")
    with PlainServer() as server, pytest.raises(Denied, match="cannot be stored: Not a directory") as denied:
        ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "token_not_kept"


def test_no_secret_is_ever_shown(home: Home, token_file: Path) -> None:
    """Not even by a server that repeats what it was told."""

    async def echo(request: web.Request) -> web.Response:
        told = f"{dict(request.headers)} {(await request.read()).decode()}"
        status = {"/v1/identity/refresh": 500, f"{INGEST}proxy": 422}.get(request.path, 400)
        return web.json_response({"error": told, "detail": told}, status=status, headers={"Location": told[:200]})

    async def work() -> list[str]:
        shown = []
        routes = {f"POST {BOOTSTRAP}": echo, f"POST {INGEST}proxy": echo, f"POST {REFRESH}": echo}
        async with served(routes) as url:
            made = settings(home, url, token_file=str(token_file))
            with pytest.raises(Denied) as denied:
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
class Moving:
    """A server whose tokens live so long, a clock of ours that a test moves, and what was asked."""

    life: float
    ahead: float = 0.0
    """Of the server's clock, which it shows."""
    now: float = field(default_factory=time.time)
    failing: int | None = None
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path.rpartition("/")[2])
        if self.failing:
            return web.Response(status=self.failing)
        given = {"jwt": f"token-number-{len(self.asked)}", "expires_at": self.now + self.ahead + self.life}
        return web.json_response(given, headers={"Date": formatdate(self.now + self.ahead, usegmt=True)})

    @asynccontextmanager
    async def credentials(self, home: Home, token_file: Path) -> AsyncIterator[Credentials]:
        async with served({f"POST {BOOTSTRAP}": self.answer, f"POST {REFRESH}": self.answer}) as url:
            self.wire, self.url = Wire(url), url
            await self.wire.open()
            yield self.again(home, token_file)
            await self.wire.close()

    def again(self, home: Home, token_file: Path) -> Credentials:
        """As a later round has them."""
        made = settings(home, self.url, token_file=str(token_file))
        return Credentials(made, self.url, "host", self.wire.request, lambda: self.now)


@pytest.mark.parametrize("ahead", [0.0, 30 * DAY, -30 * DAY])
def test_a_token_is_renewed_in_its_last_day_whatever_the_clocks_say(home: Home, token_file: Path, ahead: float) -> None:
    server = Moving(7 * DAY, ahead)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for _ in range(10):
                await credentials.get_token()
            assert server.asked == ["bootstrap"]
            server.now += 6 * DAY - 60
            await credentials.get_token()
            assert server.asked == ["bootstrap"]
            server.now += 120
            for _ in range(10):
                await credentials.get_token()
            assert server.asked == ["bootstrap", "refresh"]

    asyncio.run(work())


def test_a_kept_token_in_its_last_day_is_renewed_at_its_first_use(home: Home, token_file: Path) -> None:
    async def work() -> None:
        server = Moving(7 * DAY)
        async with server.credentials(home, token_file) as credentials:
            await credentials.get_token()
            server.now += 6.5 * DAY
            await server.again(home, token_file).get_token()
        assert server.asked == ["bootstrap", "refresh"]

    asyncio.run(work())


def test_tokens_that_never_have_a_day_left_are_not_renewed_before_each_request(home: Home, token_file: Path) -> None:
    server = Moving(HOUR)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for _ in range(60):
                await credentials.get_token()
                server.now += 60

    asyncio.run(work())

    assert server.asked == ["bootstrap", "refresh"]


def test_a_clock_that_was_set_back_or_forward_does_not_stop_anything(home: Home, token_file: Path) -> None:
    server = Moving(7 * DAY)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            for moved in (-400 * DAY, 800 * DAY, 0.0):
                server.now += moved
                assert await credentials.get_token()

    asyncio.run(work())

    assert len(server.asked) <= 3


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_renewal_that_fails_early_leaves_the_token_in_use(home: Home, token_file: Path, status: int) -> None:
    server = Moving(7 * DAY)

    async def work() -> None:
        async with server.credentials(home, token_file) as credentials:
            token = await credentials.get_token()
            server.now += 6.5 * DAY
            server.failing = status
            for _ in range(5):
                assert await credentials.get_token() == token
            # A server in trouble is left in peace for a while.
            assert server.asked.count("refresh") == 1
            server.failing = None
            server.now += 3600
            assert await credentials.get_token() != token

    asyncio.run(work())


def test_the_homes_secret_is_drawn_once_by_however_many_processes(home: Home, tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.mkdir()

    def draw(number: int) -> Callable[[], object]:
        return lambda: (found / str(number)).write_text(tokens.gateway_secret(home))

    assert set(processes.together([draw(number) for number in range(8)])) == {0}

    assert {path.read_text() for path in found.iterdir()} == {(home.delivery / "gateway.secret").read_text()}
    assert [path.name for path in home.delivery.iterdir()] == ["gateway.secret"]


def test_a_home_whose_secret_was_damaged_is_not_given_another(home: Home, token_file: Path) -> None:
    with PlainServer() as server:
        ship(settings(home, server.url, token_file=str(token_file)))
        (home.delivery / "gateway.secret").write_text("")
        kept_file(home).unlink()
        with pytest.raises(Denied, match="by which servers recognise the home") as denied:
            ship(settings(home, server.url, token_file=str(token_file)))

    assert denied.value.kind == "gateway_secret"
    assert (home.delivery / "gateway.secret").read_text() == ""


SHIP_ONE = """
import asyncio, sys
from hypaware.home import Home
from tests.unit.export.forward.forwarding import chunk, lines, opened, settings
async def work():
    async with opened(settings(Home.from_environment(), sys.argv[1], token_file=sys.argv[2])) as sink:
        await sink.ship(chunk(), lines(), 0)
asyncio.run(work())
"""


@pytest.mark.parametrize(
    "point",
    ["export.token.before-keep", "export.token.after-keep", "export.secret.before-write", "export.secret.after-write"],
)
def test_a_process_that_was_killed_while_it_got_its_token_leaves_no_trouble(
    home: Home, token_file: Path, point: str
) -> None:
    with PlainServer() as server:
        assert processes.was_killed(processes.run(SHIP_ONE, home, server.url, token_file, crash_at=point))
        assert server.rows() == []
        processes.succeed(SHIP_ONE, home, server.url, token_file)

    assert len(server.rows()) == 3
    secrets = {orjson.loads(request.body)["gateway_secret"] for request in server.asked(BOOTSTRAP)}
    assert secrets == {(home.delivery / "gateway.secret").read_text()}
