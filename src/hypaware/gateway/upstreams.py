"""The way to the providers: TLS trust and outbound proxies, for the gateway and its fallback.

- Certificates are verified against the system's authorities and those in the file that SSL_CERT_FILE names.
- HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY apply, because a machine behind a proxy has no other way out; loopback
  addresses never use a proxy. The variables come from the environment that is passed in.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hypaware.errors import NotReady

CONNECT_SECONDS = 20.0


@dataclass(frozen=True)
class OutboundProxy:
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def build_tls_context(environment: Mapping[str, str], *, tolerant: bool = False) -> ssl.SSLContext:
    """Build the TLS context for upstreams. With `tolerant`, an unreadable SSL_CERT_FILE is skipped."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    extra = environment.get("SSL_CERT_FILE")
    if extra:
        # OpenSSL lets the variable replace the system's certificates; here it adds to them.
        system = Path(ssl.get_default_verify_paths().openssl_cafile)
        if system.is_file():
            context.load_verify_locations(system)
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            if not tolerant:
                raise NotReady(f"SSL_CERT_FILE names {extra}, which contains no certificates: {error}") from None
    return context


def find_proxy(url: str, environment: Mapping[str, str]) -> OutboundProxy | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    value = _read_variable(environment, f"{parts.scheme}_proxy") or _read_variable(environment, "all_proxy")
    if not value or is_loopback(host):
        return None
    if _bypasses_proxy(host, _read_variable(environment, "no_proxy")):
        return None
    proxy = urlsplit(value if "://" in value else f"http://{value}")
    if proxy.username is None:
        return OutboundProxy(proxy.geturl())
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    address = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    return OutboundProxy(address, {"Proxy-Authorization": f"Basic {base64.b64encode(secret).decode()}"})


def _bypasses_proxy(host: str, no_proxy: str) -> bool:
    names = [name.strip().lower() for name in no_proxy.split(",")]
    if "*" in names:
        return True
    names = [name.lstrip("*").lstrip(".") for name in names]
    return any(name and (host == name or host.endswith(f".{name}")) for name in names)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _read_variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""
