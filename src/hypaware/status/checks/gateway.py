"""Check the gateway's address: the gateway answers, or the address is free."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.listen_address import free_beside, why_not
from hypaware.status import gateway
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.view import View


def port(view: View) -> Iterator[Check]:
    listen = view.daemon_part("gateway").get("listen") or view.config.gateway.listen
    use_other_port = f"hyp config set gateway.listen {free_beside(listen)}"
    answered_by = gateway.who_answers(view.home, listen)
    if answered_by == "gateway":
        yield ok("gateway", f"the gateway answers on {listen}")
    elif answered_by == "fallback":
        yield warning("gateway", f"requests to {listen} are passed through without recording", "hyp daemon start")
    elif answered_by == "stranger":
        yield failed("gateway", f"another program listens on {listen}", use_other_port)
    elif reason := why_not(listen):
        yield failed("gateway", f"cannot listen on {listen}: {reason}", use_other_port)
    else:
        yield ok("gateway", f"{listen} is free")
