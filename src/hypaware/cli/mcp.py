"""`hyp mcp`: serve recorded sessions to agents, and register the server with clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hypaware.cli import output
from hypaware.cli.command import RunnableGroup, json_option
from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.text import did_you_mean


@click.group(
    "mcp", cls=RunnableGroup, examples=["hyp mcp install claude", "hyp mcp install codex --dry-run", "hyp mcp"]
)
@click.option(
    "--include-local-only",
    is_flag=True,
    help="Also hand out sessions that are recorded but never exported. Their text then reaches the agent's provider.",
)
def mcp(include_local_only: bool) -> None:
    """Serve search, sessions, usage and SQL to an AI agent, over stdin and stdout (Model Context Protocol).

    Agents start this command themselves, after `hyp mcp install claude` or `hyp mcp install codex`. What they read
    leaves this machine with their next request, so ignored and local-only sessions are withheld. See docs/mcp.md.
    """
    from hypaware.mcp_server import serve
    from hypaware.state.home_opener import read_identity

    home = Home.from_environment()
    read_identity(home, make=False)
    if sys.stdin.isatty():
        output.note("waiting for the messages of an agent on stdin; to register with one: hyp mcp install CLIENT")
    serve(home, include_local_only=include_local_only)


@mcp.command(
    "install",
    examples=["hyp mcp install claude", "hyp mcp install codex --dry-run", "hyp mcp install claude --uninstall"],
)
@click.argument("client")
@click.option("--uninstall", is_flag=True, help="Remove the entry.")
@click.option("--dry-run", is_flag=True, help="Show the change without making it.")
@click.option("--include-local-only", is_flag=True, help="Let the agent read local-only sessions too.")
@json_option
def install(client: str, uninstall: bool, dry_run: bool, include_local_only: bool) -> None:
    """Add this server to the settings of CLIENT, for example claude, for all its projects.

    Only this entry changes, and --uninstall restores the file. Sessions that are already running do not see it.
    """
    from hypaware import extras
    from hypaware.clients.attach import attach_client, detach_client
    from hypaware.clients.mcp_entry import mcp_settings
    from hypaware.state.home_opener import read_identity

    known = mcp_settings(include_local_only=include_local_only)
    if client not in known:
        raise HypError(f"unknown client {client!r}.{did_you_mean(client, tuple(known))}", kind="unknown_client")
    if uninstall and include_local_only:
        raise UsageError("--uninstall removes the entry; --include-local-only has no meaning with it")
    home = Home.from_environment()
    environment = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
    if uninstall:
        done = detach_client(home, known[client], environment, dry_run=dry_run)
    else:
        read_identity(home, make=False)
        extras.require("mcp")
        done = attach_client(home, known[client], "", environment, dry_run=dry_run)
    report = {
        "client": client,
        "path": done.path,
        "changed": done.changed,
        "command": done.base_url,
        "dry_run": dry_run,
    }
    if output.emit_document({**report, **({"diff": done.diff} if dry_run else {})}):
        return
    if dry_run:
        output.emit(done.diff or f"{client}: nothing would change")
    elif uninstall:
        output.emit(f"{client} {'no longer has' if done.changed else 'does not have'} the server ({done.path})")
    else:
        output.emit(f"{client} {'now starts' if done.changed else 'already starts'} {done.base_url} ({done.path})")
