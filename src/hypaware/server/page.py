"""The page of a server: its options, its socket, and the process that serves it.

`hyp server run --page` listens here, before anything else can fail late, and hands the socket to a process of its own
(`hypaware.server.page_process`), so that viewers take no time and no memory from the batches. If that process ends, it
is started again. It ends when the server ends: its stdin is a pipe of the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from hypaware.engine.background import Backoff
from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.server.health import log
from hypaware.server.page_guard import PageRules
from hypaware.server.viewers import TrustedProxy

_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_RESERVED = ("host", "cookie", "origin", "authorization", "accept")
_HOST_NAME = re.compile(r"[a-z0-9_.-]+|[0-9a-f:]+")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_END_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0
_STEADY_SECONDS = 60.0


@dataclass(frozen=True)
class TeamPageOptions:
    host: str
    port: int
    names: tuple[str, ...] = ()
    """The names in the address of the page (`--page-host`)."""
    user_header: str | None = None
    proxies: tuple[str, ...] = ()
    """Addresses or networks (CIDR) of the proxy."""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def to_rules(self) -> PageRules:
        """Return the rules of the page. Raise UsageError if the options would not be safe or make no sense."""
        is_local = is_loopback(self.host)
        is_tls = self.tls_cert is not None
        proxy = self._read_proxy()
        if not is_local and not is_tls and not proxy.networks:
            raise UsageError(
                f"the page would be sent unencrypted from {self.host}. Give --tls-cert and --tls-key, or let a proxy "
                "that serves HTTPS connect to it: --page-proxy with the proxy's address"
            )
        names = {self._read_name(each) for each in self.names}
        if is_local:
            names |= {*_LOOPBACK_NAMES, self.host}
        elif self.host not in ("0.0.0.0", "::"):
            names.add(self.host.lower())
        if not names:
            raise UsageError(
                "the page needs the name in its address: --page-host with the name that people open, for example "
                "--page-host hyp.example.com"
            )
        return PageRules(frozenset(names), is_tls, only_proxy=not is_local and not is_tls, proxy=proxy)

    def _read_proxy(self) -> TrustedProxy:
        if self.user_header is not None and not self.proxies:
            raise UsageError(
                "anyone could send the header of --page-user-header: give the proxy's address with --page-proxy"
            )
        try:
            networks = tuple(ip_network(each, strict=False) for each in self.proxies)
        except ValueError as error:
            raise UsageError(
                f"--page-proxy needs an address or a network, such as 10.0.0.5 or 10.0.0.0/24: {error}"
            ) from (error)
        if any(each.prefixlen == 0 for each in networks):
            raise UsageError("--page-proxy must name the proxy, not every address")
        header = self.user_header
        if header is not None and (not _HEADER_NAME.fullmatch(header) or header.lower() in _RESERVED):
            raise UsageError(f"{header!r} is not a header that can name a person, such as X-Forwarded-User")
        return TrustedProxy(networks, header)

    def _read_name(self, name: str) -> str:
        lower = name.lower().strip("[]")
        if not _HOST_NAME.fullmatch(lower):
            raise UsageError(f"--page-host needs a host name without scheme and port, not {name!r}")
        return lower

    def to_json(self, home: Home, sockets: list[int]) -> str:
        """Return what the process reads from its stdin."""
        given: dict[str, Any] = {
            "home": str(home.root),
            "sockets": sockets,
            "host": self.host,
            "port": self.port,
            "names": self.names,
            "user_header": self.user_header,
            "proxies": self.proxies,
            "tls_cert": str(self.tls_cert) if self.tls_cert else None,
            "tls_key": str(self.tls_key) if self.tls_key else None,
        }
        return json.dumps(given)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> TeamPageOptions:
        cert, key = (Path(given[name]) if given[name] else None for name in ("tls_cert", "tls_key"))
        names, proxies = tuple(given["names"]), tuple(given["proxies"])
        return cls(given["host"], given["port"], names, given["user_header"], proxies, cert, key)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class PageProcess:
    """Keeps the page's process running until it is cancelled."""

    def __init__(self, home: Home, options: TeamPageOptions, listeners: list[socket.socket]) -> None:
        self._home, self._options, self._listeners = home, options, listeners

    async def run(self) -> None:
        backoff = Backoff(longest=_LONGEST_PAUSE_SECONDS)
        while True:
            began = time.monotonic()
            status = await self._run_once()
            if time.monotonic() - began >= _STEADY_SECONDS:
                backoff.succeeded()
            pause = backoff.failed()
            log.error("the page's process ended with status %d; it is started again in %.0f s", status, pause)
            await asyncio.sleep(pause)

    async def _run_once(self) -> int:
        descriptors = [each.fileno() for each in self._listeners]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hypaware.server.page_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=descriptors,
            # A Ctrl-C is for the server, which then ends this process in order.
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            with suppress(ConnectionError):
                process.stdin.write(self._options.to_json(self._home, descriptors).encode() + b"\n")
                await process.stdin.drain()
            return await process.wait()
        finally:
            if process.returncode is None:
                process.stdin.close()
                try:
                    async with asyncio.timeout(_END_SECONDS):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
