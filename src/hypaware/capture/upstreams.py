"""Connections to the providers: a pooled HTTP client that forwards requests and adds nothing.

- Certificates are verified against the system's authorities and those in the file that SSL_CERT_FILE names.
- HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY apply, because a machine behind a proxy has no other way out; loopback
  addresses never use a proxy. The variables are read once, from the environment that is passed in. `trust_env` is off,
  because it would also add passwords from ~/.netrc to requests.
- Connecting has a timeout, responding has none: a model may think for a long time. TCP keep-alive detects a peer that
  has disappeared, so a stream that died with the network ends instead of waiting forever.
- Idle connections are closed here before the provider closes them, so that a request rarely meets a closing one.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.connector import AddrInfoType

from hypaware.errors import NotReady

CONNECT_SECONDS = 20.0
IDLE_SECONDS = 45.0
_LIFE_SIGNS = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Options by name: not every system has all of them, and on macOS the first one has the second name."""
READ_BUFFER = 1 << 16
MAX_HEADER = 1 << 18
MAX_HEADERS = 512


@dataclass(frozen=True)
class Proxy:
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def open_session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ssl=tls, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=60, socket_factory=open_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=2 * CONNECT_SECONDS, sock_connect=CONNECT_SECONDS),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER,
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
    )


def open_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _LIFE_SIGNS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return sock


def tls_context(environment: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    extra = environment.get("SSL_CERT_FILE")
    if extra:
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            raise NotReady(f"SSL_CERT_FILE names {extra}, which contains no certificates: {error}") from None
        # OpenSSL lets the variable replace the system's certificates; here it adds to them.
        system = Path(ssl.get_default_verify_paths().openssl_cafile)
        if system.is_file():
            context.load_verify_locations(system)
    return context


def proxy_for(url: str, environment: Mapping[str, str]) -> Proxy | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    value = _variable(environment, f"{parts.scheme}_proxy") or _variable(environment, "all_proxy")
    if not value or is_loopback(host):
        return None
    if _is_excepted(host, _variable(environment, "no_proxy")):
        return None
    proxy = urlsplit(value if "://" in value else f"http://{value}")
    if proxy.username is None:
        return Proxy(proxy.geturl())
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    address = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    return Proxy(address, {"Proxy-Authorization": f"Basic {base64.b64encode(secret).decode()}"})


def _is_excepted(host: str, no_proxy: str) -> bool:
    names = [name.strip().lower().lstrip(".") for name in no_proxy.split(",")]
    return "*" in names or any(name and (host == name or host.endswith(f".{name}")) for name in names)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""
