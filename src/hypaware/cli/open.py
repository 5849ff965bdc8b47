"""`hyp open`: show what is recorded in the browser."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.errors import NotReady
from hypaware.home import Home

if TYPE_CHECKING:
    import socket

_HIGHEST_PORT = 65535


@click.command("open", cls=Command, examples=["hyp open", "hyp open --no-browser", "hyp open --port 8080"])
@click.option("--no-browser", is_flag=True, help="Print the address without opening it.")
@click.option(
    "--port",
    type=click.IntRange(0, _HIGHEST_PORT),
    metavar="N",
    help="Serve the page from this command, on this port of 127.0.0.1; 0 picks a free one.",
)
@json_option
def open_(no_browser: bool, port: int | None) -> None:
    """Show what is recorded in the browser: overview, sessions, search, health.

    The printed address signs one browser in. It works once, within ten minutes; the browser then stays signed in for 30
    days. Only this machine can reach the page. The daemon serves it; if it does not run, or with --port, this command
    serves it until you press Ctrl-C.
    """
    from hypaware.state.home_opener import read_identity

    home = Home.from_environment()
    read_identity(home, make=False)
    if port is None and (address := _daemon_address(home)):
        _show(home, address, "daemon", no_browser)
    else:
        _serve(home, port, no_browser)


def _daemon_address(home: Home) -> str | None:
    """Return where the daemon serves the page, or None."""
    from hypaware.home import daemon_process

    pid, status = daemon_process.running_daemon(home), daemon_process.read_daemon_status(home)
    page: dict[str, Any] = status.get("page") or {}
    if pid is None or status.get("pid") != pid:
        return None
    if page.get("state") == "down":
        output.warn(f"the daemon cannot serve the page on {page.get('listen')}: {page.get('error')}")
    return page.get("listen") if page.get("state") == "listening" else None


def _serve(home: Home, port: int | None, no_browser: bool) -> None:
    from hypaware import config
    from hypaware.page.process import serve

    listener = _listen(config.load(home).page.listen, port)
    host, number = listener.getsockname()[:2]
    address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"

    def announce() -> None:
        _show(home, address, "foreground", no_browser)
        output.note("press Ctrl-C to stop")

    serve(home, listener, announce)


def _listen(configured: str, port: int | None) -> socket.socket:
    from hypaware.gateway.handover import bind_listener, bind_page_listener, find_free_address

    address = configured if port is None else f"127.0.0.1:{port}"
    try:
        return bind_page_listener(address) if port is None else bind_listener(address)
    except OSError as error:
        free = find_free_address(address).rpartition(":")[2]
        raise NotReady(
            f"the page cannot be served on {address}: {error.strerror}",
            kind="page_address",
            repair=f"hyp open --port {free}",
        ) from error


def _show(home: Home, address: str, served_by: str, no_browser: bool) -> None:
    from hypaware.page.access import SignIn, open_address

    url = open_address(f"http://{address}", SignIn(home).make_token())
    if not output.emit_document({"url": url, "served_by": served_by}):
        output.write_bytes(f"{url}\n".encode())
    if no_browser:
        return
    if reason := _why_no_browser():
        port = address.rpartition(":")[2]
        output.note(
            f"{reason}; to use the browser of another machine, run there: ssh -L {port}:{address} <this machine>"
        )
    else:
        _open_browser(url)


def _why_no_browser() -> str | None:
    """Return why no browser can be opened here, or None."""
    if os.environ.get("BROWSER"):
        return None
    if os.environ.get("SSH_CONNECTION"):
        return "this is an SSH session"
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return None if sys.platform == "darwin" or has_display else "there is no display"


def _open_browser(url: str) -> None:
    """Open the browser from a process of its own: what it prints must not mix with our output."""
    import subprocess

    subprocess.Popen(
        [sys.executable, "-m", "webbrowser", "-t", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
