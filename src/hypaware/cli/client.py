"""`hyp client`: which clients go through the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.clients.attach import Environment, Outcome, Settings
    from hypaware.config import Config
    from hypaware.errors import HypError

    _Failed = tuple[str, HypError]

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
    """Let NAME, or every client that is set up here and not left out by the config, call its provider by the gateway.

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
    settings = config.load(home)
    listen = settings.gateway.listen
    gateway = gateway_url(listen)
    environment = _environment()

    def attached(each: Settings) -> Outcome:
        shown = steps.attach(home, each, gateway, environment, dry_run=True)
        if not dry_run and shown.base_url:
            # First somebody who answers, then the client that calls.
            handover.wake(home, shown.base_url)
            if asked(home, shown.base_url) is None:
                raise not_answering(home, listen)
            shown = steps.attach(home, each, gateway, environment)
        return shown

    here = _chosen(name, environment)
    wanted = here if name else _not_left_out(here, settings)
    done, failed = _each(wanted, attached)
    recorded = instance.running(home) is not None
    if recorded and not dry_run:
        handover.stands_by(home)
    _tell(done, failed, dry_run, as_json, ("goes through the gateway at {base_url}", "goes there already"))
    if done and not dry_run and not recorded:
        output.note("the daemon does not run: requests pass unrecorded until it does (hyp daemon start)")
    _fail(done, failed, dry_run)


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
    done, failed = _each(
        _chosen(name, environment, also_absent=True),
        lambda each: steps.detach(home, each, environment, dry_run=dry_run),
    )
    _tell(done, failed, dry_run, as_json, ("is off the gateway", "was not attached"))
    _fail(done, failed, dry_run)


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
            repair=list(dict.fromkeys(each.repair for each in bad if each.repair)),
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


def _not_left_out(here: list[Settings], settings: Config) -> list[Settings]:
    from hypaware.backfill.selection import is_enabled
    from hypaware.errors import UsageError

    wanted = [each for each in here if is_enabled(settings, each.name)]
    if not wanted:
        names = ", ".join(each.name for each in here)
        raise UsageError(
            f"the config leaves out every client that is set up here ({names}); name one", kind="no_client"
        )
    return wanted


def _each(clients: list[Settings], step: Callable[[Settings], Outcome]) -> tuple[list[Outcome], list[_Failed]]:
    """One whose settings cannot be changed does not hold the others; where nobody listens, none is begun."""
    from hypaware.errors import HypError, NotReady

    done: list[Outcome] = []
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
    import os
    from pathlib import Path

    return {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}


def _tell(done: list[Outcome], failed: list[_Failed], dry_run: bool, as_json: bool, said: tuple[str, str]) -> None:
    """What was done; with `--json` and a failure, `_fail` has it. `said`: where it changed, and where not."""
    if as_json:
        if not failed:
            output.emit_json(_report(done, dry_run))
        return
    for each in done:
        if dry_run:
            output.emit(each.diff or f"{each.client}: nothing would change")
        else:
            changed, unchanged = said
            what = changed.format(base_url=each.base_url) if each.changed else unchanged
            output.emit(f"{each.client} {what} ({each.path})")
        if each.upstream:
            output.note(f"{each.client}: what it called before, {each.upstream}, stays in the way behind the gateway")
        for note in each.notes:
            output.warn(f"{each.client}: {note}")


def _fail(done: list[Outcome], failed: list[_Failed], dry_run: bool) -> None:
    from hypaware.cli.failure import PartlyFailed

    if len(failed) == 1 and not done:
        raise failed[0][1]
    if failed:
        raise PartlyFailed(
            "; ".join(f"{name}: {error.message}" for name, error in failed),
            _report(done, dry_run),
            kind=failed[0][1].kind,
            repair=[command for _, error in failed for command in error.repair],
        )


def _report(done: list[Outcome], dry_run: bool) -> dict[str, object]:
    clients = [
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
    return {"dry_run": dry_run, "clients": clients}
