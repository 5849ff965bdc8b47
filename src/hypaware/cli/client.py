"""`hyp client`: which clients go through the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.clients.attach import Environment, Outcome, Settings

_dry_run = click.option("--dry-run", is_flag=True, help="Show the change and make none.")


@click.group(
    "client",
    cls=Group,
    examples=["hyp client attach claude", "hyp client status", "hyp client detach"],
)
def client() -> None:
    """Point a client at the gateway, and back."""


@client.command("attach", examples=["hyp client attach claude", "hyp client attach codex --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def attach(name: str | None, dry_run: bool, as_json: bool) -> None:
    """Let NAME, or every client that is set up here, call its provider through the gateway.

    Only the client's own settings change, so sessions that run already go on as they are. While the daemon does not
    run, requests reach the provider all the same.
    """
    from hypaware import config
    from hypaware.capture import handover
    from hypaware.clients import attach as steps
    from hypaware.clients.gateway_url import gateway_url, not_answering
    from hypaware.clients.standing import asked
    from hypaware.daemon import instance

    home = Home.from_environment()
    listen = config.load(home).gateway.listen
    gateway = gateway_url(listen)
    environment = _environment()
    done: list[Outcome] = []
    for each in _chosen(name, environment):
        shown = steps.attach(home, each, gateway, environment, dry_run=True)
        if not dry_run and shown.base_url:
            # First somebody who answers, then the client that calls.
            handover.wake(home, shown.base_url)
            if asked(home, shown.base_url) is None:
                raise not_answering(home, listen)
            shown = steps.attach(home, each, gateway, environment)
        done.append(shown)
    recorded = instance.running(home) is not None
    if recorded and not dry_run:
        handover.stands_by(home)
    _tell(done, dry_run, as_json, "goes through the gateway at {base_url}", "goes there already")
    if not dry_run and not recorded:
        output.note("the daemon does not run: requests pass unrecorded until it does (hyp daemon start)")


@client.command("detach", examples=["hyp client detach claude", "hyp client detach --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def detach(name: str | None, dry_run: bool, as_json: bool) -> None:
    """Take NAME, or every client, off the gateway again: its settings become what they were.

    What was changed in them meanwhile stays; only what attach put in is taken out.
    """
    from hypaware.clients import attach as steps

    home = Home.from_environment()
    environment = _environment()
    done = [
        steps.detach(home, each, environment, dry_run=dry_run) for each in _chosen(name, environment, also_absent=True)
    ]
    _tell(done, dry_run, as_json, "is off the gateway", "was not attached")


@client.command("status", examples=["hyp client status", "hyp client status claude --json"])
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """How NAME, or each client, stands: asked of who answers where it calls, not of its settings alone.

    Exits 1 when a client calls where nobody answers, or has lost what attach put into its settings.
    """
    from hypaware.cli.failure import PartlyFailed
    from hypaware.clients.standing import standing

    home = Home.from_environment()
    environment = _environment()
    found = [standing(home, each, environment) for each in _chosen(name, environment, also_absent=True)]
    report = {"clients": [each.as_json() for each in found]}
    bad = [each for each in found if each.state in ("broken", "changed")]
    if as_json and not bad:
        output.emit_json(report)
    elif not as_json:
        output.emit_table(
            ["client", "state", "calls", "seen", "exchanges"],
            [(each.client, each.state, each.base_url, each.last_seen_at, each.exchanges) for each in found],
        )
    for each in found:
        if each.problem:
            output.warn(each.problem)
        if each.state == "passing":
            output.note(f"{each.client}: the daemon does not run, so its requests pass unrecorded (hyp daemon start)")
    if bad:
        raise PartlyFailed(
            "; ".join(f"{each.client} is {each.state}" for each in bad),
            report,
            kind="client_not_reaching",
            repair=[each.repair for each in bad if each.repair],
        )


def _chosen(name: str | None, environment: Environment, also_absent: bool = False) -> list[Settings]:
    from hypaware import plugins
    from hypaware.clients.client import Client
    from hypaware.errors import HypError, UsageError
    from hypaware.nearest import nearest

    known = {each.name: each.settings for each in plugins.load(plugins.CLIENTS, Client) if each.settings}
    if name is not None:
        if name not in known:
            raise HypError(
                f"there is no client {name!r} to attach.{nearest(name, tuple(known))}", kind="unknown_client"
            )
        return [known[name]]
    here = [each for each in known.values() if also_absent or each.path(environment).parent.is_dir()]
    if not here:
        raise UsageError(f"no client is set up here; name one: {', '.join(known)}", kind="no_client")
    return here


def _environment() -> Environment:
    import os
    from pathlib import Path

    return {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}


def _tell(done: list[Outcome], dry_run: bool, as_json: bool, changed: str, unchanged: str) -> None:
    if as_json:
        report = [
            {
                "client": each.client,
                "path": each.path,
                "changed": each.changed,
                "base_url": each.base_url,
                "upstream": each.upstream,
                "notes": each.notes,
                **({"diff": each.diff} if dry_run else {}),
            }
            for each in done
        ]
        output.emit_json({"dry_run": dry_run, "clients": report})
        return
    for each in done:
        if dry_run:
            output.emit(each.diff or f"{each.client}: nothing would change")
        else:
            said = changed.format(base_url=each.base_url) if each.changed else unchanged
            output.emit(f"{each.client} {said} ({each.path})")
        if each.upstream:
            output.note(f"{each.client}: what it called before, {each.upstream}, stays in the way behind the gateway")
        for note in each.notes:
            output.warn(f"{each.client}: {note}")
