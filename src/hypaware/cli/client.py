"""`hyp client`: attach clients to the gateway, detach them, and show their state.

`hyp hook` is the command that a client's hook runs while no daemon does, see `clients.session_hook`. It prints nothing
and always succeeds, because it runs while the user works in the client.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.command import Command, Group, json_option
from hypaware.errors import HypError, NotReady, UsageError
from hypaware.home import Home
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    from hypaware.clients.attach import AttachResult, ClientSettings, Environment
    from hypaware.gateway.attach_status import AttachStatus

    _Failed = tuple[str, HypError]

_MAX_EVENT_BYTES = 4 << 20

_dry_run = click.option("--dry-run", is_flag=True, help="Show the change without making it.")


@click.group("client", cls=Group, examples=["hyp client attach claude", "hyp client status", "hyp client detach"])
def client() -> None:
    """Attach clients to the gateway, or detach them.

    An attached client sends its requests through the gateway, which records them.
    """


@client.command("attach", examples=["hyp client attach claude", "hyp client attach codex --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def attach(name: str | None, dry_run: bool) -> None:
    """Send the requests of NAME through the gateway.

    Without NAME, attach every installed client that the config does not disable. Only the client's own settings change,
    so sessions that are already running are not affected. Claude Code also gets two hooks, which report the folder of a
    session (see docs/live.md). While the daemon is not running, requests still reach the
    provider, unrecorded. After a reboot they do not, until something opens the gateway's address: the daemon, if it
    starts with every login (`hyp daemon install`), any hyp command, or a prompt in Claude Code.
    """
    from hypaware import config
    from hypaware.backfill.request import is_enabled
    from hypaware.clients.attach import attach_client
    from hypaware.daemon import lifecycle
    from hypaware.gateway import handover
    from hypaware.gateway.attach_status import probe_gateway
    from hypaware.gateway.handover import gateway_unreachable, gateway_url
    from hypaware.home import daemon_process

    home = Home.from_environment()
    settings = config.load(home)
    listen = settings.gateway.listen
    gateway = gateway_url(listen)
    environment = _environment()

    def attach_one(each: ClientSettings) -> AttachResult:
        outcome = attach_client(home, each, gateway, environment, dry_run=True)
        if not dry_run and outcome.base_url:
            # Change the settings only after the gateway answers.
            handover.ensure_listener(home, outcome.base_url)
            if probe_gateway(home, outcome.base_url) is None:
                raise gateway_unreachable(home, listen)
            outcome = attach_client(home, each, gateway, environment)
        return outcome

    selected = _select(name, environment)
    if not name:
        names = ", ".join(each.name for each in selected)
        selected = [each for each in selected if is_enabled(settings, each.name)]
        if not selected:
            raise UsageError(
                f"the config disables every installed client ({names}); name one to attach it", kind="no_client"
            )
    done, failed = _run_each(selected, attach_one)
    recorded = daemon_process.running_daemon(home) is not None
    if recorded and not dry_run:
        handover.wait_for_fallback(home)
    notices = []
    if done and not dry_run and not recorded:
        notices.append("the daemon is not running: requests are not recorded until you start it (hyp daemon start)")
    if done and not dry_run and lifecycle.find_installed_service(home) is None:
        notices.append(
            "the daemon does not start with this machine: after a reboot, an attached client cannot reach its provider "
            "until the next hyp command, or the next prompt in a client with a hook. To prevent that: "
            "hyp daemon install"
        )
    words = ("is attached to the gateway at {base_url}", "is already attached")
    _finish(done, failed, dry_run, words, notices)


@client.command("detach", examples=["hyp client detach claude", "hyp client detach --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def detach(name: str | None, dry_run: bool) -> None:
    """Restore the settings of NAME, so that it calls its provider directly.

    Without NAME, detach every client. Only the changes made by `hyp client attach` are undone; your own later changes
    stay. Sessions that are already running still call the gateway: its address stays open until an hour after their
    last request.
    """
    from hypaware.clients.attach import detach_client, read_record
    from hypaware.gateway import handover
    from hypaware.home import daemon_process, locks

    home = Home.from_environment()
    environment = _environment()
    selected = _select(name, environment, include_absent=True)
    records = {each.name: read_record(home, each.name) for each in selected}
    done, failed = _run_each(selected, lambda each: detach_client(home, each, environment, dry_run=dry_run))
    called = [records[each.client] for each in done if each.changed]
    addresses = dict.fromkeys(record.base_url.split("/")[2] for record in called if record)
    pid = None if daemon_process.running_daemon(home) else locks.lock_holder(handover.fallback_lock_path(home))
    notices = [
        f"sessions that are already running still call {address}; it stays open until an hour after their last request"
        + (f" (to close it now: kill {pid})" if pid else "")
        for address in addresses
        if not dry_run and _is_open(address)
    ]
    _finish(done, failed, dry_run, ("is detached", "was not attached"), notices)


@client.command("status", examples=["hyp client status", "hyp client status claude --json"])
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, expose_value=False, help="Accepted, as by attach; status changes nothing.")
@json_option
def status(name: str | None) -> None:
    """Show whether NAME, or each client, is attached.

    It reads the client's settings and also probes the address that the client calls. Exits 1 if an attached client
    cannot reach the gateway, or if its settings no longer point to it.
    """
    from hypaware.gateway.attach_status import attach_status

    home = Home.from_environment()
    environment = _environment()
    found = [attach_status(home, each, environment) for each in _select(name, environment, include_absent=True)]
    report = {"clients": [each.as_json() for each in found]}
    bad = [each for each in found if each.state in ("broken", "changed")]
    if not output.wants_json():
        output.emit_table(
            ["client", "state", "address", "last seen", "exchanges"],
            [(each.client, each.state, each.base_url, each.last_seen_at, each.exchanges) for each in found],
        )
    for each in found:
        if each.problem:
            output.warn(each.problem)
        if each.state == "passing":
            why, fix = _explain_passing(home, each)
            output.note(f"{each.client}: {why}, so requests are not recorded ({fix})")
    if bad:
        raise output.PartialFailure(
            "; ".join(f"{each.client} is {each.state}" for each in bad),
            report,
            kind="client_not_reaching",
            repair=list(dict.fromkeys(each.repair for each in bad if each.repair)),
        )
    output.emit_document(report)


def _explain_passing(home: Home, status: AttachStatus) -> tuple[str, str]:
    """Return why the fallback answers a client, and the command that changes it."""
    from hypaware import config
    from hypaware.home import daemon_process

    with suppress(HypError):
        listen = config.load(home).gateway.listen
        if not status.calls(listen):
            return f"gateway.listen is {listen}", f"hyp client attach {status.client}"
    if daemon_process.running_daemon(home) is None:
        return "the daemon is not running", "hyp daemon start"
    return "the gateway is not listening", "hyp daemon restart"


def _select(name: str | None, environment: Environment, include_absent: bool = False) -> list[ClientSettings]:
    from hypaware import plugins
    from hypaware.clients.client import Client

    known = {each.name: each.settings for each in plugins.load_plugins(plugins.CLIENTS, Client) if each.settings}
    if name is not None:
        if name not in known:
            raise HypError(f"unknown client {name!r}.{did_you_mean(name, tuple(known))}", kind="unknown_client")
        return [known[name]]
    installed = [each for each in known.values() if include_absent or each.path(environment).parent.is_dir()]
    if not installed:
        raise UsageError(f"no client is installed; name one: {', '.join(known)}", kind="no_client")
    return installed


def _run_each(
    clients: list[ClientSettings], step: Callable[[ClientSettings], AttachResult]
) -> tuple[list[AttachResult], list[_Failed]]:
    """Run the step for each client and collect the failures; stop if the gateway does not answer."""
    done: list[AttachResult] = []
    failed: list[_Failed] = []
    for each in clients:
        try:
            done.append(step(each))
        except NotReady:
            raise
        except HypError as error:
            failed.append((each.name, error))
    return done, failed


def _environment() -> Environment:
    return {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}


def _finish(
    done: list[AttachResult], failed: list[_Failed], dry_run: bool, words: tuple[str, str], notices: list[str]
) -> None:
    """Print the outcomes and raise the failures. `words` describes a changed and an unchanged client."""
    for each in () if output.wants_json() else done:
        if dry_run:
            output.emit(each.diff or f"{each.client}: nothing would change")
        else:
            changed, unchanged = words
            what = changed.format(base_url=each.base_url) if each.changed else unchanged
            output.emit(f"{each.client} {what} ({each.path})")
        if each.upstream:
            output.note(f"{each.client}: the gateway forwards to the address it called before, {each.upstream}")
        for note in each.notes:
            output.warn(f"{each.client}: {note}")
    for notice in notices:
        output.note(notice)
    if len(failed) == 1 and not done:
        raise failed[0][1]
    names = ["client", "path", "changed", "base_url", "upstream", "notes", *(["diff"] if dry_run else [])]
    report = {"dry_run": dry_run, "clients": [{name: getattr(each, name) for name in names} for each in done]}
    if failed:
        raise output.PartialFailure(
            "; ".join(f"{name}: {error.message}" for name, error in failed),
            report,
            kind=failed[0][1].kind,
            repair=[command for _, error in failed for command in error.repair],
        )
    output.emit_document(report)


@click.command("hook", cls=Command, hidden=True, examples=["hyp hook claude < event.json"], any_crash_point=True)
@click.argument("client")
def hook(client: str) -> None:
    """Record the working directory of a CLIENT session from the hook event on stdin. Print nothing and never fail."""
    with suppress(Exception):
        from hypaware import plugins
        from hypaware.clients import session_hook

        if client not in plugins.plugin_names(plugins.CLIENTS) or sys.stdin.isatty():
            return
        event = json.loads(sys.stdin.buffer.read(_MAX_EVENT_BYTES))
        home = Home.from_environment()
        with suppress(Exception):
            reopen_addresses(home)
        session_hook.record_context(home, client, event)


def reopen_addresses(home: Home) -> list[str]:
    """Start the gateway's fallback if nothing listens at the address of an attached client, as after a reboot.

    Return a message for each client whose address was closed. Runs before every command, so it costs little.
    """
    messages = []
    for record in sorted((home.root / "clients").glob("*/attach.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            attached = json.loads(record.read_bytes())
            name, base_url = attached["client"], attached["base_url"]
            address = base_url.split("/")[2]
            if _is_open(address) or base_url not in Path(attached["path"]).read_text():
                continue
            from hypaware.gateway import handover

            with suppress(OSError):
                handover.start_fallback(home, address)
            if _is_open(address):
                messages.append(
                    f"{name}: nothing listened at {address}, which it calls. Its requests reach the provider again, "
                    "but are not recorded: hyp daemon start (with every login: hyp daemon install)"
                )
            else:
                messages.append(
                    f"{name}: nothing listens at {address}, which it calls, so it does not work: hyp daemon start, or "
                    f"hyp client detach {name} (see {handover.fallback_log_path(home)})"
                )
    return messages


def _is_open(address: str) -> bool:
    import socket

    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=0.2).close()
    except OSError:
        return False
    return True
