"""`hyp client`: attach clients to the gateway, detach them, and show their state."""

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

_dry_run = click.option("--dry-run", is_flag=True, help="Show the change without making it.")


@click.group(
    "client",
    cls=Group,
    examples=["hyp client attach claude", "hyp client status", "hyp client detach"],
)
def client() -> None:
    """Attach clients to the gateway, or detach them.

    An attached client sends its requests through the gateway, which records them.
    """


@client.command("attach", examples=["hyp client attach claude", "hyp client attach codex --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def attach(name: str | None, dry_run: bool, as_json: bool) -> None:
    """Send the requests of NAME through the gateway.

    Without NAME, attach every installed client that the config does not disable. Only the client's own settings change,
    so sessions that are already running are not affected. While the daemon is not running, requests still reach the
    provider, unrecorded.
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

    def attach_one(each: Settings) -> Outcome:
        outcome = steps.attach(home, each, gateway, environment, dry_run=True)
        if not dry_run and outcome.base_url:
            # Change the settings only after the gateway answers.
            handover.wake(home, outcome.base_url)
            if asked(home, outcome.base_url) is None:
                raise not_answering(home, listen)
            outcome = steps.attach(home, each, gateway, environment)
        return outcome

    installed = _select(name, environment)
    selected = installed if name else _enabled(installed, settings)
    done, failed = _run_each(selected, attach_one)
    recorded = instance.running(home) is not None
    if recorded and not dry_run:
        handover.stands_by(home)
    _print(done, failed, dry_run, as_json, ("is attached to the gateway at {base_url}", "is already attached"))
    if done and not dry_run and not recorded:
        output.note("the daemon is not running: requests are not recorded until you start it (hyp daemon start)")
    _fail(done, failed, dry_run)


@client.command("detach", examples=["hyp client detach claude", "hyp client detach --dry-run"])
@click.argument("name", required=False)
@_dry_run
@json_option
def detach(name: str | None, dry_run: bool, as_json: bool) -> None:
    """Restore the settings of NAME, so that it calls its provider directly.

    Without NAME, detach every client. Only the changes made by `hyp client attach` are undone; your own later changes
    stay.
    """
    from hypaware.clients import attach as steps

    home = Home.from_environment()
    environment = _environment()
    done, failed = _run_each(
        _select(name, environment, include_absent=True),
        lambda each: steps.detach(home, each, environment, dry_run=dry_run),
    )
    _print(done, failed, dry_run, as_json, ("is detached", "was not attached"))
    _fail(done, failed, dry_run)


@client.command("status", examples=["hyp client status", "hyp client status claude --json"])
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show whether NAME, or each client, is attached.

    It reads the client's settings and also probes the address that the client calls. Exits 1 if an attached client
    cannot reach the gateway, or if its settings no longer point to it.
    """
    from hypaware.cli.failure import PartlyFailed
    from hypaware.clients.standing import standing

    home = Home.from_environment()
    environment = _environment()
    found = [standing(home, each, environment) for each in _select(name, environment, include_absent=True)]
    report = {"clients": [each.as_json() for each in found]}
    bad = [each for each in found if each.state in ("broken", "changed")]
    if as_json and not bad:
        output.emit_json(report)
    elif not as_json:
        output.emit_table(
            ["client", "state", "address", "last seen", "exchanges"],
            [(each.client, each.state, each.base_url, each.last_seen_at, each.exchanges) for each in found],
        )
    for each in found:
        if each.problem:
            output.warn(each.problem)
        if each.state == "passing":
            output.note(f"{each.client}: the daemon is not running, so requests are not recorded (hyp daemon start)")
    if bad:
        raise PartlyFailed(
            "; ".join(f"{each.client} is {each.state}" for each in bad),
            report,
            kind="client_not_reaching",
            repair=list(dict.fromkeys(each.repair for each in bad if each.repair)),
        )


def _select(name: str | None, environment: Environment, include_absent: bool = False) -> list[Settings]:
    from hypaware import plugins
    from hypaware.clients.client import Client
    from hypaware.errors import HypError, UsageError
    from hypaware.nearest import nearest

    known = {each.name: each.settings for each in plugins.load(plugins.CLIENTS, Client) if each.settings}
    if name is not None:
        if name not in known:
            raise HypError(
                f"no client {name!r} that can be attached.{nearest(name, tuple(known))}", kind="unknown_client"
            )
        return [known[name]]
    installed = [each for each in known.values() if include_absent or each.path(environment).parent.is_dir()]
    if not installed:
        raise UsageError(f"no client is installed; name one: {', '.join(known)}", kind="no_client")
    return installed


def _enabled(installed: list[Settings], settings: Config) -> list[Settings]:
    from hypaware.backfill.selection import is_enabled
    from hypaware.errors import UsageError

    enabled = [each for each in installed if is_enabled(settings, each.name)]
    if not enabled:
        names = ", ".join(each.name for each in installed)
        raise UsageError(
            f"the config disables every installed client ({names}); name one to attach it", kind="no_client"
        )
    return enabled


def _run_each(clients: list[Settings], step: Callable[[Settings], Outcome]) -> tuple[list[Outcome], list[_Failed]]:
    """Run the step for each client and collect the failures; stop at once if the gateway does not answer."""
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


def _print(done: list[Outcome], failed: list[_Failed], dry_run: bool, as_json: bool, words: tuple[str, str]) -> None:
    """Print the outcomes. With `--json` and a failure, `_fail` prints the report instead.

    `words` holds the text for a changed and for an unchanged client.
    """
    if as_json:
        if not failed:
            output.emit_json(_report(done, dry_run))
        return
    for each in done:
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
