"""The gateway's address: ours already, or free to be."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.listen_address import free_beside, why_not
from hypaware.status import gateway
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.view import View


def port(view: View) -> Iterator[Check]:
    listen = view.of_daemon("gateway").get("listen") or view.config.gateway.listen
    elsewhere = f"hyp config set gateway.listen {free_beside(listen)}"
    answers = gateway.who_answers(view.home, listen)
    if answers == "gateway":
        yield ok("gateway", f"the gateway answers at {listen}")
    elif answers == "fallback":
        yield warning("gateway", f"at {listen} requests are passed on unrecorded", "hyp daemon start")
    elif answers == "stranger":
        yield failed("gateway", f"another program listens at {listen}", elsewhere)
    elif reason := why_not(listen):
        yield failed("gateway", f"nobody can listen at {listen}: {reason}", elsewhere)
    else:
        yield ok("gateway", f"{listen} is free")
