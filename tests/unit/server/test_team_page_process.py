"""`hyp server run --page` as a process: its own process for the page, TLS, tokens that are revoked, and its end."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import psutil
import pytest
import trustme

from hypaware.home import Home
from hypaware.server import auth
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import Client, enrol
from tests.support.served_page import ServedPage
from tests.support.team_page import SEEN, make_team_home, sign_in

_MAX_MEMORY = 150_000_000


@contextmanager
def running_page(home: Home, *options: str) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """Run a server with a page, and yield the addresses of both."""
    arguments = ("--listen", "127.0.0.1:0", "--no-flush", "--page", "127.0.0.1:0", *options)
    process = Hyp(home.root).start("server", "run", *arguments)
    assert process.stdout
    try:
        url, page = (process.stdout.readline().decode().split(" ", 2)[-1].strip() for _ in range(2))
        yield url.removeprefix("on "), page.removeprefix("at "), process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE)


def test_the_page_is_a_process_of_its_own_that_lives_as_long_as_the_server(home: Home) -> None:
    make_team_home(home)
    token, _ = auth.create_token(home, "alice", use="view")
    enrol_token, _ = auth.create_token(home, "carol")
    with running_page(home) as (url, page, process):
        browser = ServedPage(urlsplit(page).port or 0)
        assert sign_in(browser, token).status == 303
        shown = browser.ask("/sessions?days=all")
        assert shown.status == 200
        assert SEEN in shown.text
        (child,) = psutil.Process(process.pid).children()
        assert child.nice() > psutil.Process(process.pid).nice()
        libraries = {Path(each.path).name for each in child.memory_maps()}
        assert not [name for name in libraries if "arrow" in name]
        assert child.memory_info().rss < _MAX_MEMORY
        # What arrives now is shown without a restart.
        gateway = enrol(url, enrol_token, "gw-carol")
        assert gateway.deliver(0, 3).status == 202
        eventually(lambda: "carol" in browser.ask("/machines?days=all").text)
        # A page that dies is started again, and the server goes on.
        child.kill()
        assert Client(url).ask("GET", "/readyz").status == 200
        eventually(lambda: _answers(browser))
        assert browser.ask("/sessions?days=all").status == 200
        (again,) = psutil.Process(process.pid).children()
        assert again.pid != child.pid
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert "Traceback" not in err.decode(), err.decode()
        assert "page: alice GET /sessions 200" in err.decode()
        eventually(lambda: not again.is_running())


def test_a_page_ends_if_its_server_is_killed(home: Home) -> None:
    make_team_home(home)
    with running_page(home) as (_, _, process):
        (child,) = psutil.Process(process.pid).children()
        process.kill()
        process.wait(PATIENCE)
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_token_that_an_operator_revokes_ends_its_sign_ins(home: Home) -> None:
    make_team_home(home)
    made = Hyp(home.root).ok("server", "token", "create", "--viewer", "--label", "alice viewer")
    assert made["use"] == "view"
    with running_page(home) as (_, page, _):
        browser = ServedPage(urlsplit(page).port or 0)
        assert sign_in(browser, made["token"]).status == 303
        assert browser.ask("/machines").status == 200
        Hyp(home.root).ok("server", "token", "revoke", "alice viewer")
        eventually(lambda: browser.ask("/machines").status == 401)
        assert sign_in(browser, made["token"]).status == 403
    listed = Hyp(home.root).ok("server", "token", "list")["tokens"]
    assert [each["status"] for each in listed if each["use"] == "view"] == ["revoked"]


def test_a_page_with_a_certificate_is_encrypted(home: Home, tmp_path: Path) -> None:
    make_team_home(home)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    token, _ = auth.create_token(home, use="view")
    paths = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with running_page(home, *paths) as (url, page, _):
        assert url.startswith("https://")
        assert page.startswith("https://")
        connection = http.client.HTTPSConnection("127.0.0.1", urlsplit(page).port, context=trusting, timeout=PATIENCE)
        form = urlencode({"token": token, "next": "/sessions?days=all"})
        headers = {"Origin": page, "Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/sign-in", form, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert "max-age" in answer.headers["Strict-Transport-Security"]
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-hyp_page=")
        assert "Secure" in cookie
        connection.request("GET", answer.headers["Location"], headers={"Cookie": cookie.partition(";")[0]})
        shown = connection.getresponse()
        assert shown.status == 200
        assert SEEN in shown.read().decode()
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "help_"),
    [
        (["--page", "0.0.0.0:0"], "--tls-cert"),
        (["--page", "127.0.0.1:0", "--page-user-header", "X-User"], "--page-proxy"),
        (["--page", "nowhere"], "--page"),
        (["--page-host", "hyp.example.com"], "need --page"),
    ],
)
def test_unsafe_options_are_rejected_with_what_to_do(home: Home, arguments: list[str], help_: str) -> None:
    refused = Hyp(home.root).run("server", "run", "--listen", "127.0.0.1:0", *arguments)
    assert refused.code == 2
    assert help_ in re.sub(r"\s+", " ", refused.err)
    assert not home.root.exists()


def test_an_address_of_the_page_in_use_is_reported(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = Hyp(home.root).run("server", "run", "--listen", "127.0.0.1:0", "--no-flush", "--page", address)
    assert refused.code == 3
    assert address in refused.err


def _answers(browser: ServedPage) -> bool:
    try:
        return browser.ask("/static/page.css").status == 200
    except OSError:
        return False
