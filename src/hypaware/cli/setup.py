"""`hyp setup`: set up HypAware on this machine, or repair an existing setup.

It prints a line per step while it runs, then the import, an overview and example queries.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import event_handler, open_progress
from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.home import Home, cache_dir
from hypaware.text import did_you_mean, escape

if TYPE_CHECKING:
    from hypaware.setup.plan import SetupChoices, SetupPlan, SetupStep
    from hypaware.setup.run import SetupResult


def _parse_export(context: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str | None] | None:
    """Parse `keep-local`, `local-parquet` or `server`, optionally followed by a space and the destination."""
    from hypaware.setup.plan import EXPORTS

    if value is None:
        return None
    kind, _, place = value.strip().partition(" ")
    if kind not in EXPORTS:
        raise click.BadParameter(f"unknown export {kind!r}.{did_you_mean(kind, EXPORTS)}")
    return kind, place.strip() or None


@click.command(
    "setup",
    cls=Command,
    examples=[
        "hyp setup",
        "hyp setup --yes",
        "hyp setup --yes --dry-run",
        "hyp setup --yes --attach",
        "hyp setup --client claude --retention-days 90",
        "hyp setup --export server https://hyp.example --token-file ~/hyp-token",
    ],
)
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing and use the defaults.")
@click.option(
    "--client",
    "--source",
    "clients",
    multiple=True,
    metavar="CLIENT",
    help="Set up only this client, for example claude; repeat for several.",
)
@click.option(
    "--export",
    metavar="keep-local|local-parquet|server URL",
    callback=_parse_export,
    help="Also deliver rows to this destination; local-parquet takes an optional FOLDER.",
)
@click.option("--token-file", metavar="FILE", help="Read the server's token from this file, for --export server.")
@click.option(
    "--retention-days", type=click.IntRange(min=0), metavar="N", help="Keep rows for this many days; 0 means forever."
)
@click.option("--no-daemon", is_flag=True, help="Do not start the daemon: nothing is followed or attached.")
@click.option(
    "--attach/--no-attach",
    help="Send clients through the gateway, which changes their settings; by default they are only followed.",
)
@click.option("--no-backfill", is_flag=True, help="Do not import the session history.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without changing anything on disk.")
@click.option("--force", is_flag=True, help="Allow changes to an existing config; a backup copy is kept.")
@json_option
@click.pass_context
def setup(
    context: click.Context,
    place: str | None,
    yes: bool,
    clients: tuple[str, ...],
    export: tuple[str, str | None] | None,
    token_file: str | None,
    retention_days: int | None,
    no_daemon: bool,
    attach: bool,
    no_backfill: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Set up HypAware: write the config, install the engine, import history, start the daemon.

    The daemon records new sessions from the transcripts that your clients write; the clients' settings stay as they
    are. With --attach, their requests also go through HypAware's gateway, which adds raw exchanges, system prompts,
    failed requests and the exact usage of answers that were cut off. Attached clients stay attached.

    Without options it asks questions; with any option except --json it asks nothing. You can run it again at any time:
    it keeps the config, adds missing parts, repairs broken ones, and imports new history.
    """
    from hypaware.setup.config import WOULD_CHANGE
    from hypaware.setup.plan import SetupChoices, parse_export

    # `--json` alone is not a choice: it must not start anything without a question.
    asks = all(context.get_parameter_source(name) is not ParameterSource.COMMANDLINE for name in context.params)
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("no terminal to ask questions on, and no option was given", repair="hyp setup --yes")
    kind, destination = export or (None, None)
    if place is not None and destination is not None:
        raise UsageError(f"--export has two destinations: {destination} and {place}")
    choices = SetupChoices(
        clients=clients or None,
        export=parse_export(kind, destination or place, token_file),
        retention_days=retention_days,
        imports=not no_backfill,
        daemon=not no_daemon,
        attach=attach,
        force=force,
    )
    if dry_run:
        from hypaware.home.sqlite_readonly import immutable_reads

        context.with_resource(immutable_reads())
    plan = _plan(choices)
    known = [each.name for each in plan.found]
    for name in clients:
        if name not in known:
            raise UsageError(f"unknown client {name!r}.{did_you_mean(name, known)}", kind="unknown_client")
    _note_original(plan)
    if asks:
        from hypaware.cli.setup_questions import ask_questions

        plan = ask_questions(plan)
    try:
        result = _run(plan, dry_run)
    except Cancelled:
        output.note("completed steps are kept; run hyp setup again to continue")
        raise
    except HypError as error:
        if error.kind == WOULD_CHANGE:
            error.repair = (_command_line(context, "--force"), *error.repair)
        raise
    if not output.wants_json():
        show_setup(result, plan)
    _finish(result)


def _plan(choices: SetupChoices) -> SetupPlan:
    from hypaware import plugins
    from hypaware.setup import discovery
    from hypaware.setup.plan import SetupPlan

    for plugin, _ in plugins.inspect_group(plugins.CLIENTS):
        if plugin.error is not None:
            output.warn(f"cannot load the client {plugin.name} from {plugin.distribution}: {plugin.error}")
    home, now = Home.from_environment(), datetime.now(UTC)
    variables = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
    return SetupPlan(home, cache_dir(), choices, discovery.find_clients(home, variables, now), variables, now)


def _note_original(plan: SetupPlan) -> None:
    """Name the parts of the JavaScript original that are installed here, each with its command."""
    from hypaware.status import clients, doctor

    for each in clients.inspect_original(doctor.read_input(plan.home, plan.variables, plan.now)).diagnostics:
        output.note(f"{each.message}: {' or '.join(each.repair)}")


def _run(plan: SetupPlan, dry_run: bool) -> SetupResult:
    from hypaware.setup.plan import SetupListener
    from hypaware.setup.run import run_setup

    with open_progress() as bar:

        def on_step(step: SetupStep) -> None:
            if not dry_run:
                bar.clear()
                print_step(step, sys.stderr)

        return run_setup(plan, SetupListener(on_step, bar.report, event_handler(bar)), dry_run=dry_run)


def _finish(result: SetupResult) -> None:
    if not result.failed:
        output.emit_document(result.as_json())
        return
    first = result.failed[0].error
    assert first is not None
    names = ", ".join(dict.fromkeys(step.name for step in result.failed))
    repair = dict.fromkeys(command for step in result.failed for command in step.commands)
    failure = output.PartialFailure(
        f"setup is incomplete ({names}): {first.message}", result.as_json(), kind=first.kind, repair=tuple(repair)
    )
    failure.exit_code = first.exit_code
    raise failure


def _command_line(context: click.Context, extra: str) -> str:
    """Return the command line of this call, with one more option."""
    words = ["hyp", "setup"]
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if isinstance(param, click.Argument):
            words += [value] if value else []
        elif value is True or (param.name == "as_json" and output.wants_json()):
            words.append(param.opts[0])
        elif value not in (None, False, ()):
            for each in value if param.multiple else (value,):
                parts = each if isinstance(each, tuple) else (each,)
                words += [param.opts[0], *(str(part) for part in parts if part)]
    return shlex.join([*words, extra])


_MARKS = {
    "done": ("+", "green"),
    "would": ("+", "green"),
    "unchanged": ("=", "dim"),
    "skipped": ("-", "yellow"),
    "failed": ("!", "bold red"),
}
EXAMPLE_QUERIES = {
    "What did my agents do each day?": (
        "SELECT date, count(DISTINCT session_id) AS sessions, count(DISTINCT message_id) AS messages "
        "FROM ai_gateway_messages WHERE provider_type IS DISTINCT FROM 'gateway' "
        "GROUP BY date ORDER BY date DESC LIMIT 14"
    ),
    "Which tools do they use?": (
        "SELECT tool_name, count(*) AS calls FROM ai_gateway_messages "
        "WHERE part_type = 'tool_call' GROUP BY tool_name ORDER BY calls DESC LIMIT 10"
    ),
    "Which messages mention errors?": (
        "SELECT message_created_at, cwd, left(content_text, 80) AS text FROM ai_gateway_messages "
        "WHERE content_text ILIKE '%error%' AND provider_type IS DISTINCT FROM 'gateway' "
        "ORDER BY message_created_at DESC LIMIT 10"
    ),
}


def print_step(step: SetupStep, stream: TextIO) -> None:
    """Print one line for the step, then its notes and commands; in colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    mark, style = _MARKS[step.status]
    console.print(Text(f"{mark} ", style=style) + Text(f"{step.name:<7} ", style="bold") + Text(escape(step.message)))
    for note in step.notes:
        console.print(Text(f"{'':10}{escape(note)}", style="dim"))
    label = {"skipped": "later", "failed": "try"}.get(step.status)
    for command in step.commands if label else ():
        console.print(Text(f"{'':10}{label}: {escape(command)}", style="dim"))
    stream.flush()


def show_setup(result: SetupResult, plan: SetupPlan) -> None:
    if result.dry_run:
        for step in result.steps:
            print_step(step, sys.stdout)
            if diff := step.facts.get("diff"):
                output.emit("\n".join(f"    {line}" for line in str(diff).splitlines()))
    if result.backfill is not None:
        _show_import(result.backfill, result)
    if result.dry_run:
        output.note("dry run: nothing was changed")
        return
    if result.overview is not None:
        from hypaware.cli.overview import OverviewStyle, render_overview

        output.emit()
        output.emit(render_overview(result.overview, OverviewStyle.of(sys.stdout)))
        output.emit("\nTry these queries:\n")
        for question, sql in EXAMPLE_QUERIES.items():
            output.emit(f'# {question}\nhyp query sql "{sql}"\n')
    for line in _next_steps(result, plan):
        output.note(f"next: {line}")


def _show_import(report: Mapping[str, Any], result: SetupResult) -> None:
    from hypaware.cli import backfill

    rows = []
    for each in report["providers"]:
        counts = [f"{each[name]:,}" for name in ("sessions_seen", "rows_written", "rows_skipped", "rows_rejected")]
        days = (each["summary"]["first_day"], each["summary"]["last_day"])
        rows.append((each["provider"], each["status"], *counts, *days))
    written = "would write" if result.dry_run else "written"
    output.emit()
    output.emit_table(["client", "status", "sessions", written, "skipped", "rejected", "from", "to"], rows)
    for each in report["providers"]:
        for line in backfill.skipped_lines(each):
            output.emit(f"{each['provider']}: {line}")
    for each in report["providers"]:
        backfill.warn_about_provider(each, result.home, result.dry_run)


def _next_steps(result: SetupResult, plan: SetupPlan) -> Iterator[str]:
    """Yield the next steps for the user."""
    from hypaware.backfill.request import is_enabled
    from hypaware.clients import attach

    merged = result.config
    sink = merged.config.sinks.get(merged.sink) if merged.sink else None
    if sink is not None and sink.kind == "forward":
        file = str(sink.options.get("token_file") or "")
        if not file:
            yield f"if the server requires a token: hyp config set sinks.{merged.sink}.token_file FILE"
        elif not Path(file).expanduser().is_file():
            yield f"put the server's token into {file} (the server's operator creates one with hyp server token create)"
    if sink is not None and sink.kind == "blob":
        yield f"the daemon delivers rows to {sink.options['destination']}; to deliver now: hyp export"
    if any("url" in change or "destination" in change for change in merged.changes):
        yield f"{merged.sink} has a new destination: hyp export adopt {merged.sink}, or hyp export resend {merged.sink}"
    for each in plan.found:
        if not is_enabled(merged.config, each.name) and attach.read_record(plan.home, each.name):
            yield f"{each.name} is disabled but still attached to the gateway: hyp client detach {each.name}"
    started = [step for step in result.steps if step.name == "daemon" and step.facts.get("installed") is False]
    if started and any(step.name == "attach" and step.status in ("done", "unchanged") for step in result.steps):
        yield (
            "after a reboot, attached clients cannot reach their provider until the daemon or any hyp command runs; "
            "to start the daemon with every login: hyp daemon install"
        )
    elif any(step.status == "done" for step in started):
        yield "to start the daemon with every login: hyp daemon install"
    if result.config.clients and any(
        step.name == "daemon" and step.status in ("done", "unchanged") for step in result.steps
    ):
        yield "new sessions are recorded while they are written; to see it: hyp status"
    if any(step.name == "attach" and step.status == "done" for step in result.steps):
        yield "running sessions do not use the gateway; start a new one, then check: hyp status"
    if result.overview is not None:
        yield "to look at your sessions in the browser: hyp open"
