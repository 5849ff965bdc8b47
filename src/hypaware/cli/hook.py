"""`hyp hook`: the command that `hyp client attach` adds to a client's hooks.

It prints nothing and always succeeds, because it runs while the user works in the client.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from hypaware.cli.group import Command
from hypaware.home import Home

_MAX_BYTES = 4 << 20


@click.command("hook", cls=Command, hidden=True, examples=["hyp hook claude < event.json"], any_crash_point=True)
@click.argument("client")
def hook(client: str) -> None:
    """Record the working directory of a CLIENT session from the hook event on stdin. Prints nothing, never fails."""
    with suppress(Exception):
        import json

        from hypaware.clients import session_notes

        if client != "claude" or sys.stdin.isatty():
            return
        event = json.loads(sys.stdin.buffer.read(_MAX_BYTES))
        home = Home.from_environment()
        with suppress(Exception):
            _wake_listener(home, client)
        session_notes.note(home, client, event)


def _wake_listener(home: Home, client: str) -> None:
    """Start the gateway's fallback if nothing listens at the address of the client, as after a reboot."""
    import json
    import socket

    record = home.root / "clients" / client / "attach.json"
    if not record.is_file():
        return
    address = json.loads(record.read_bytes())["base_url"].split("/")[2]
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=0.2).close()
    except OSError:
        from hypaware.capture import handover

        handover.start(home, address)
