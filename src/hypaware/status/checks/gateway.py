"""The gateway's address: ours already, or free to be."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from hypaware.status import gateway
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.view import View


def port(view: View) -> Iterator[Check]:
    listen = view.of_daemon("gateway").get("listen") or view.config.gateway.listen
    elsewhere = f"hyp config set gateway.listen {gateway.next_port(listen)}"
    answers = gateway.who_answers(view.home, listen)
    if answers == "gateway":
        yield ok("gateway", f"the gateway answers at {listen}")
    elif answers == "fallback":
        yield warning("gateway", f"at {listen} requests are passed on unrecorded", "hyp daemon start")
    elif answers == "stranger":
        yield failed("gateway", f"another program listens at {listen}", elsewhere)
    elif reason := _why_not(listen):
        yield failed("gateway", f"nobody can listen at {listen}: {reason}", elsewhere)
    else:
        yield ok("gateway", f"{listen} is free")


def _why_not(listen: str) -> str | None:
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((bare or "127.0.0.1", int(port)))
        except (OSError, ValueError, OverflowError) as trouble:
            return str(trouble)
    return None
