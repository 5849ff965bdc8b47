"""The questions of `hyp setup` on a terminal. It asks all of them before it changes anything.

Ctrl-C, Esc or the end of the input at any question ends the command without a change. Questions are drawn on stderr, so
that the output can be piped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from questionary import Choice, Question, checkbox, confirm, path, select, text

from hypaware import config as configuration
from hypaware.backfill.request import is_enabled
from hypaware.cli import output
from hypaware.clients.attach import read_record
from hypaware.config import Config
from hypaware.errors import Cancelled, UsageError
from hypaware.setup import config as setup_config
from hypaware.setup.discovery import FoundClient
from hypaware.setup.plan import ExportChoice, SetupChoices, SetupPlan, folder_export, server_export
from hypaware.setup.run import record_cancelled_consent
from hypaware.text import format_count, format_size

_DAYS = (0, 365, 90, 30)
_OTHER_DAYS = -1


def ask_questions(plan: SetupPlan) -> SetupPlan:
    """Return the plan with the user's choices, starting now. Raise Cancelled if the user leaves."""
    config = configuration.load(plan.home)
    output.note(
        "HypAware records the sessions of your AI agents in a lakehouse on this machine, which you can query with SQL."
    )
    if plan.home.config.exists():
        output.note(f"It is already set up ({plan.home.config}). Your settings are kept unless you change them.")
    output.note("Nothing is changed until you have answered all questions. Press Esc to quit.\n")
    offered = [
        Choice(_client_label(each), each.name, checked=each.installed and is_enabled(config, each.name))
        for each in plan.found
    ]
    clients = tuple(_ask(checkbox, "Which clients do you want to record?", offered))
    export = _ask_export(plan, config)
    days = _ask_retention(config.retention.default_days)
    chosen = replace(plan, choices=SetupChoices(clients, export, days, force=True, interactive=True))
    imports = _ask_import(chosen, replace(config, retention=replace(config.retention, default_days=days)), days)
    daemon = _ask_daemon(clients)
    attach = daemon and _ask_attach(chosen)
    choices = replace(chosen.choices, imports=imports, daemon=daemon, attach=attach)
    answered = replace(plan, choices=choices, now=datetime.now(UTC))
    merged = setup_config.merge_config(plan.home, choices, plan.found, answered.now)
    if merged.changes:
        output.note(f"\n{merged.diff}\n")
        if not _ask(confirm, f"Change {merged.path}? A backup copy is kept.", default=True):
            raise Cancelled
    return answered


def _client_label(each: FoundClient) -> str:
    label = f"{each.name:<8} {each.client.about}: "
    if each.problem:
        return f"{label}{each.problem}"
    if not each.installed:
        return f"{label}not installed"
    estimate = each.estimate()
    if not estimate.sessions:
        return label + (f"all {each.imported:,} files are imported" if each.imported else "no history yet")
    days = " to ".join(dict.fromkeys(day for day in (estimate.first_day, estimate.last_day) if day))
    return f"{label}{format_count(estimate.sessions, 'session')}, {days}, {format_size(estimate.bytes)}"


def _ask_export(plan: SetupPlan, config: Config) -> ExportChoice | None:
    choices = [
        Choice("Nowhere: keep them in the lake on this machine", "keep-local"),
        Choice("Also to a folder, as Parquet files", "local-parquet"),
        Choice("Also to your team's server", "server"),
    ]
    if config.sinks:
        choices.insert(0, Choice(f"Keep the current setting: {', '.join(config.sinks)}", "keep-current"))
    kind = _ask(select, "Where do you want to deliver rows?", choices)
    if kind == "keep-current":
        return None
    if kind == "local-parquet":
        folder = setup_config.default_folder(plan.home)
        return folder_export(
            _ask(path, "Which folder?", folder, validate=_accepted_by(folder_export), only_directories=True)
        )
    if kind == "server":
        url = _ask(text, "What is the server's address?", validate=_url_problem)
        token = _ask(path, "Which file holds the token?", setup_config.default_token_file(plan.home))
        return server_export(url, token or None)
    return ExportChoice("keep-local")


def _ask_retention(current: int) -> int:
    choices = [Choice(f"{days:,} days" if days else "Forever", days) for days in dict.fromkeys((current, *_DAYS))]
    choices.append(Choice("Another number of days", _OTHER_DAYS))
    days = _ask(select, "How long do you want to keep rows?", choices)
    if days == _OTHER_DAYS:
        days = _ask(text, "How many days? (0 means forever)", validate=_days_problem)
    return int(days)


def _ask_import(plan: SetupPlan, config: Config, days: int) -> bool:
    clients = plan.choices.clients or ()
    since = plan.now - timedelta(days=min(days, 36_500)) if days else None
    estimates = [each.estimate(since) for each in plan.found if each.name in clients]
    sessions = sum(each.sessions for each in estimates)
    if not sessions:
        return bool(clients)
    what = f"about {format_count(sessions, 'session')} ({format_size(sum(each.bytes for each in estimates))})"
    try:
        return bool(_ask(confirm, f"Import their history, {what}?", default=True))
    except Cancelled:
        record_cancelled_consent(plan, clients, config)
        raise


def _ask_daemon(clients: Sequence[str]) -> bool:
    if not clients:
        output.note("You chose no client, so nothing is recorded automatically. Run hyp setup again to add one.")
        question = "Start the daemon anyway? It commits and delivers rows from hyp ingest"
        return bool(_ask(confirm, question, default=False))
    question = (
        "Record new sessions while they happen? The daemon reads the transcripts of "
        f"{', '.join(clients)}, now and after every login, and changes nothing of theirs"
    )
    return bool(_ask(confirm, question, default=True))


def _ask_attach(plan: SetupPlan) -> bool:
    """Ask whether clients are sent through the gateway, unless those that could be already are."""
    offered = [each.name for each in plan.settings(plan.choices.clients or ())]
    attached = [name for name in offered if read_record(plan.home, name) is not None]
    if attached:
        output.note(f"{', '.join(attached)}: attached to the gateway, and stays attached.")
    names = ", ".join(name for name in offered if name not in attached)
    if not names:
        return False
    output.note(
        f"HypAware can also send the requests of {names} through its gateway. That adds what transcripts do not hold: "
        "raw exchanges, system prompts, failed requests, and the exact usage of answers that were cut off. It changes "
        "how they talk to their provider: their settings point to this machine, and they depend on the daemon."
    )
    return bool(_ask(confirm, f"Send {names} through the gateway?", default=False))


def _accepted_by(check: Callable[[str], object]) -> Callable[[str], bool | str]:
    """Return a validator for questionary: True if the check passes, otherwise the message of its error."""

    def validate(answer: str) -> bool | str:
        try:
            check(answer)
        except UsageError as error:
            return error.message
        return True

    return validate


def _url_problem(url: str) -> bool | str:
    return _accepted_by(server_export)(url) if url.strip() else "Enter an address, such as https://host.example"


def _days_problem(text: str) -> bool | str:
    return True if text.isascii() and text.isdecimal() and len(text) < 9 else "Enter a whole number, such as 180"


def _ask(question: Callable[..., Question], *args: Any, **options: Any) -> Any:
    """Ask on stderr, because stdout may be piped, and return the answer. Raise Cancelled if the user leaves."""
    bindings = KeyBindings()

    @bindings.add(Keys.Escape, eager=True)
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    asked = question(*args, output=create_output(stdout=sys.stderr), **options)
    own = asked.application.key_bindings
    asked.application.key_bindings = merge_key_bindings([own, bindings] if own else [bindings])
    try:
        return asked.unsafe_ask()
    except (KeyboardInterrupt, EOFError):
        raise Cancelled from None
