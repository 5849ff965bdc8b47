"""The walkthrough: what `hyp setup` asks on a terminal. All of it before anything is done.

Ctrl-C, Esc or the end of the input at any question ends the command, and nothing has changed. Questions are drawn on
stderr, so that what the command reports can be piped away.
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
    """The plan with the user's choices in it, beginning now; Cancelled if the user broke off."""
    config = configuration.load(plan.home)
    _greet(plan, is_new=not plan.home.config.exists())
    clients = _clients(plan.found, config)
    export = _export(plan, config)
    days = _days(config)
    chosen = replace(plan, choices=Choices(clients, export, days, force=True, interactive=True))
    imports = _consent(chosen, _kept_for(config, days), days)
    lives = _live(clients) if clients else _without_clients()
    choices = replace(chosen.choices, imports=imports, daemon=lives != _NEITHER, attach=lives == _BOTH)
    made = replace(plan, choices=choices, now=datetime.now(UTC))
    _confirm_changes(made)
    return made


def _greet(plan: Plan, *, is_new: bool) -> None:
    output.note("HypAware keeps the history of your AI agents in a lakehouse on this machine, and answers SQL over it.")
    if not is_new:
        output.note(
            f"It is set up already ({plan.home.config}): what you leave as it is stays, what is missing is added."
        )
    output.note("Nothing is changed before the last question; Esc leaves.\n")


def _clients(found: Sequence[FoundClient], config: Config) -> tuple[str, ...]:
    from questionary import Choice, checkbox

    choices = [
        Choice(_described(each), each.name, checked=each.installed and is_enabled(config, each.name)) for each in found
    ]
    return tuple(answer(checkbox("Which clients shall be recorded?", choices, **drawn())))


def _described(each: FoundClient) -> str:
    told = f"{each.name:<8} {each.client.about}: "
    if each.problem:
        return f"{told}{each.problem}"
    if not each.installed:
        return f"{told}not found here"
    estimate = each.estimate()
    if not estimate.sessions:
        return told + (f"all {each.imported:,} files are imported" if each.imported else "no history yet")
    days = " to ".join(dict.fromkeys(day for day in (estimate.first_day, estimate.last_day) if day))
    return f"{told}{_some(estimate.sessions, 'session')}, {days}, {size(estimate.bytes)}"


def _export(plan: Plan, config: Config) -> Export | None:
    from questionary import Choice, path, select, text

    folder = configuring.usual_folder(plan.home)
    choices = [
        Choice("Nowhere: they stay in the lake on this machine", "keep-local"),
        Choice("Into a folder as Parquet files, as well", "local-parquet"),
        Choice("To a server of your team, as well", "server"),
    ]
    if config.sinks:
        choices.insert(0, Choice(f"As the config says: {', '.join(config.sinks)}", "as-it-is"))
    kind = answer(select("Where shall rows go?", choices, **drawn()))
    if kind == "as-it-is":
        return None
    if kind == "local-parquet":
        question = path("Which folder?", folder, validate=_folder_problem, only_directories=True, **drawn())
        return to_folder(answer(question))
    if kind == "server":
        url = answer(text("The server's address?", validate=_url_problem, **drawn()))
        token = path("The file that holds the token?", configuring.usual_token_file(plan.home), **drawn())
        return to_server(url, answer(token) or None)
    return Export("keep-local")


def _days(config: Config) -> int:
    from questionary import Choice, select, text

    now = config.retention.default_days
    known = list(dict.fromkeys((now, *_DAYS)))
    choices = [Choice(_duration(days), days) for days in known]
    choices.append(Choice("Another number of days", _OTHER))
    days = answer(select("How long shall rows be kept?", choices, **drawn()))
    if days == _OTHER:
        days = int(answer(text("How many days? (0 is for ever)", validate=_days_problem, **drawn())))
    return int(days)


def _consent(plan: Plan, config: Config, days: int) -> bool:
    from questionary import confirm

    clients = plan.choices.clients or ()
    since = plan.now - timedelta(days=min(days, 36_500)) if days else None
    estimates = [each.estimate(since) for each in plan.found if each.name in clients]
    sessions = sum(each.sessions for each in estimates)
    if not sessions:
        return bool(clients)
    what = f"about {_some(sessions, 'session')} ({size(sum(each.bytes for each in estimates))})"
    try:
        return bool(answer(confirm(f"Import their history, {what}?", default=True, **drawn())))
    except Cancelled:
        importing.consent_cancelled(plan, clients, config)
        raise


def _live(clients: Sequence[str]) -> str:
    from questionary import Choice, select

    names = ", ".join(clients)
    choices = [
        Choice(f"Yes: start the daemon and let {names} go through its gateway (their settings change)", _BOTH),
        Choice("Start the daemon, and leave their settings as they are", _DAEMON),
        Choice("No", _NEITHER),
    ]
    return str(answer(select("Shall new sessions be recorded as they happen?", choices, **drawn())))


def _without_clients() -> str:
    from questionary import confirm

    output.note("No client is chosen, so nothing is recorded by itself; hyp setup adds one at any time.")
    question = "Start the daemon all the same? It commits and delivers what hyp ingest brings"
    return _DAEMON if answer(confirm(question, default=False, **drawn())) else _NEITHER


def _confirm_changes(plan: Plan) -> None:
    from questionary import confirm

    made = configuring.foretell(plan.home, plan.choices, plan.found, plan.now)
    if not made.changes:
        return
    output.note(f"\n{made.diff}\n")
    question = f"Change {made.path}? A copy of it is kept."
    if not answer(confirm(question, default=True, **drawn())):
        raise Cancelled


def _kept_for(config: Config, days: int) -> Config:
    return replace(config, retention=replace(config.retention, default_days=days))


def _url_problem(url: str) -> bool | str:
    return _problem(lambda: to_server(url)) if url.strip() else "an address, such as https://host.example"


def _folder_problem(folder: str) -> bool | str:
    return _problem(lambda: to_folder(folder))


def _problem(made: Any) -> bool | str:
    try:
        made()
    except UsageError as error:
        return error.message
    return True


def _days_problem(text: str) -> bool | str:
    return True if text.isascii() and text.isdecimal() and len(text) < 9 else "a whole number, such as 180"


def _duration(days: int) -> str:
    return f"{days:,} days" if days else "For ever"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
