"""The questions of `hyp setup` on a terminal. All of them are asked before anything is changed.

Ctrl-C, Esc or the end of the input at any question ends the command without a change. Questions are drawn on stderr, so
that the output can be piped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware import config as configuration
from hypaware.backfill.selection import is_enabled
from hypaware.cli import output
from hypaware.cli.asking import answer, drawn
from hypaware.config import Config
from hypaware.errors import Cancelled, UsageError
from hypaware.setup import configuring, importing
from hypaware.setup.choices import Choices, Export, to_folder, to_server
from hypaware.setup.finding import FoundClient
from hypaware.setup.plan import Plan

_DAYS = (0, 365, 90, 30)
_OTHER = -1
_BOTH, _DAEMON, _NEITHER = "both", "daemon", "neither"


def ask(plan: Plan) -> Plan:
    """Return the plan with the user's choices, starting now. Raise Cancelled if the user leaves."""
    config = configuration.load(plan.home)
    _greet(plan, is_new=not plan.home.config.exists())
    clients = _ask_clients(plan.found, config)
    export = _ask_export(plan, config)
    days = _ask_retention(config)
    chosen = replace(plan, choices=Choices(clients, export, days, force=True, interactive=True))
    imports = _ask_import(chosen, _with_retention(config, days), days)
    live = _ask_live(clients) if clients else _ask_daemon()
    choices = replace(chosen.choices, imports=imports, daemon=live != _NEITHER, attach=live == _BOTH)
    answered = replace(plan, choices=choices, now=datetime.now(UTC))
    _confirm_changes(answered)
    return answered


def _greet(plan: Plan, *, is_new: bool) -> None:
    output.note(
        "HypAware records the sessions of your AI agents in a lakehouse on this machine, which you can query with SQL."
    )
    if not is_new:
        output.note(f"It is already set up ({plan.home.config}). Your settings are kept unless you change them.")
    output.note("Nothing is changed until you have answered all questions. Press Esc to quit.\n")


def _ask_clients(found: Sequence[FoundClient], config: Config) -> tuple[str, ...]:
    from questionary import Choice, checkbox

    choices = [
        Choice(_described(each), each.name, checked=each.installed and is_enabled(config, each.name)) for each in found
    ]
    return tuple(answer(checkbox("Which clients do you want to record?", choices, **drawn())))


def _described(each: FoundClient) -> str:
    label = f"{each.name:<8} {each.client.about}: "
    if each.problem:
        return f"{label}{each.problem}"
    if not each.installed:
        return f"{label}not installed"
    estimate = each.estimate()
    if not estimate.sessions:
        return label + (f"all {each.imported:,} files are imported" if each.imported else "no history yet")
    days = " to ".join(dict.fromkeys(day for day in (estimate.first_day, estimate.last_day) if day))
    return f"{label}{_plural(estimate.sessions, 'session')}, {days}, {size(estimate.bytes)}"


def _ask_export(plan: Plan, config: Config) -> Export | None:
    from questionary import Choice, path, select, text

    folder = configuring.usual_folder(plan.home)
    choices = [
        Choice("Nowhere: keep them in the lake on this machine", "keep-local"),
        Choice("Also to a folder, as Parquet files", "local-parquet"),
        Choice("Also to your team's server", "server"),
    ]
    if config.sinks:
        choices.insert(0, Choice(f"Keep the current setting: {', '.join(config.sinks)}", "keep-current"))
    kind = answer(select("Where do you want to deliver rows?", choices, **drawn()))
    if kind == "keep-current":
        return None
    if kind == "local-parquet":
        question = path("Which folder?", folder, validate=_folder_problem, only_directories=True, **drawn())
        return to_folder(answer(question))
    if kind == "server":
        url = answer(text("What is the server's address?", validate=_url_problem, **drawn()))
        token = path("Which file holds the token?", configuring.usual_token_file(plan.home), **drawn())
        return to_server(url, answer(token) or None)
    return Export("keep-local")


def _ask_retention(config: Config) -> int:
    from questionary import Choice, select, text

    current = config.retention.default_days
    offered = list(dict.fromkeys((current, *_DAYS)))
    choices = [Choice(_duration(days), days) for days in offered]
    choices.append(Choice("Another number of days", _OTHER))
    days = answer(select("How long do you want to keep rows?", choices, **drawn()))
    if days == _OTHER:
        days = int(answer(text("How many days? (0 means forever)", validate=_days_problem, **drawn())))
    return int(days)


def _ask_import(plan: Plan, config: Config, days: int) -> bool:
    from questionary import confirm

    clients = plan.choices.clients or ()
    since = plan.now - timedelta(days=min(days, 36_500)) if days else None
    estimates = [each.estimate(since) for each in plan.found if each.name in clients]
    sessions = sum(each.sessions for each in estimates)
    if not sessions:
        return bool(clients)
    what = f"about {_plural(sessions, 'session')} ({size(sum(each.bytes for each in estimates))})"
    try:
        return bool(answer(confirm(f"Import their history, {what}?", default=True, **drawn())))
    except Cancelled:
        importing.consent_cancelled(plan, clients, config)
        raise


def _ask_live(clients: Sequence[str]) -> str:
    from questionary import Choice, select

    names = ", ".join(clients)
    choices = [
        Choice(f"Yes: start the daemon and attach {names} to its gateway (changes their settings)", _BOTH),
        Choice("Start the daemon, but do not change their settings", _DAEMON),
        Choice("No", _NEITHER),
    ]
    return str(answer(select("Do you want to record new sessions live?", choices, **drawn())))


def _ask_daemon() -> str:
    from questionary import confirm

    output.note("You chose no client, so nothing is recorded automatically. Run hyp setup again to add one.")
    question = "Start the daemon anyway? It commits and delivers rows from hyp ingest"
    return _DAEMON if answer(confirm(question, default=False, **drawn())) else _NEITHER


def _confirm_changes(plan: Plan) -> None:
    from questionary import confirm

    merged = configuring.foretell(plan.home, plan.choices, plan.found, plan.now)
    if not merged.changes:
        return
    output.note(f"\n{merged.diff}\n")
    question = f"Change {merged.path}? A backup copy is kept."
    if not answer(confirm(question, default=True, **drawn())):
        raise Cancelled


def _with_retention(config: Config, days: int) -> Config:
    return replace(config, retention=replace(config.retention, default_days=days))


def _url_problem(url: str) -> bool | str:
    return _problem(lambda: to_server(url)) if url.strip() else "Enter an address, such as https://host.example"


def _folder_problem(folder: str) -> bool | str:
    return _problem(lambda: to_folder(folder))


def _problem(check: Any) -> bool | str:
    """Return True if the check passes, otherwise the message of its error, as questionary expects."""
    try:
        check()
    except UsageError as error:
        return error.message
    return True


def _days_problem(text: str) -> bool | str:
    return True if text.isascii() and text.isdecimal() and len(text) < 9 else "Enter a whole number, such as 180"


def _duration(days: int) -> str:
    return f"{days:,} days" if days else "Forever"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
