"""`hyp hook`: what the hooks run that attach puts into a client's settings. Nobody calls it by hand.

Whatever happens, it says nothing and succeeds: it runs in the middle of somebody's work.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from hypaware.cli.group import Command
from hypaware.home import Home

_MOST_BYTES = 4 << 20


@click.command("hook", cls=Command, hidden=True, examples=["hyp hook claude < event.json"], any_crash_point=True)
@click.argument("client")
def hook(client: str) -> None:
    """Note where a session of CLIENT is at work: its hook's JSON comes on stdin. Says nothing, never fails."""
    with suppress(Exception):
        import json

        from hypaware.clients import session_notes

        if client != "claude" or sys.stdin.isatty():
            return
        told = json.loads(sys.stdin.buffer.read(_MOST_BYTES))
        home = Home.from_environment()
        with suppress(Exception):
            _wake_listener(home, client)
        session_notes.note(home, client, told)


def _wake_listener(home: Home, client: str) -> None:
    """After a restart of the machine nobody may be listening yet where the client is about to call."""
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
