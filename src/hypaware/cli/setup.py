"""`hyp setup`: from nothing to a recorded, searchable history."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.nearest import nearest

if TYPE_CHECKING:
    from hypaware.cli.progress import Display
    from hypaware.setup.choices import Choices
    from hypaware.setup.finding import FoundClient
    from hypaware.setup.plan import Listener, Plan
    from hypaware.setup.run import Result


class _ExportParam(click.ParamType[tuple[str, str | None]]):
    """`keep-local`, `local-parquet` or `server`; what follows it, also within one word, is the place."""

    name = "export"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "keep-local|local-parquet|server URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        from hypaware.setup.choices import EXPORTS

        kind, _, place = str(value).strip().partition(" ")
        if kind not in EXPORTS:
            self.fail(f"there is no export {kind!r}.{nearest(kind, EXPORTS)}", param, ctx)
        return kind, place.strip() or None


@click.command(
    "setup",
    cls=Command,
    examples=[
        "hyp setup",
        "hyp setup --yes",
        "hyp setup --yes --dry-run",
        "hyp setup --client claude --retention-days 90 --no-attach",
        "hyp setup --export server https://hyp.example --token-file ~/hyp-token",
    ],
)
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing and choose what most people choose.")
@click.option("--client", "clients", multiple=True, metavar="claude|codex", help="Only this one; may be repeated.")
@click.option("--export", type=_ExportParam(), help="Where rows go besides this machine; a folder may follow too.")
@click.option("--token-file", metavar="FILE", help="With --export server: the file that holds the token.")
@click.option("--retention-days", type=click.IntRange(min=0), help="Keep rows so long; 0 is for ever.")
@click.option("--no-daemon", is_flag=True, help="Start no daemon, and so attach nothing.")
@click.option("--no-attach", is_flag=True, help="Leave the clients' settings as they are.")
@click.option("--no-backfill", is_flag=True, help="Import no history.")
@click.option("--dry-run", is_flag=True, help="Say exactly what would be done, and leave no trace.")
@click.option("--force", is_flag=True, help="Change what the config says; a copy of it stays.")
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
    no_attach: bool,
    no_backfill: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Set everything up: the config, the engine, your history, the daemon, your clients.

    Without a flag it asks; with any but --json it asks nothing. Run it again whenever you like: the config is kept,
    what is missing or broken is put in order, and what is new is imported.
    """
    from hypaware.setup.choices import Choices, export_of

    # How to report is no choice: `--json` alone must not attach clients that nobody named.
    given = (name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    asks = not any(name != "as_json" for name in given)
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("nobody is there to be asked, and no flag says what to do", repair="hyp setup --yes")
    kind, within = export or (None, None)
    if place is not None and within is not None:
        raise UsageError(f"--export has two places: {within} and {place}")
    choices = Choices(
        clients=clients or None,
        export=export_of(kind, within or place, token_file),
        retention_days=retention_days,
        imports=not no_backfill,
        daemon=not no_daemon,
        attach=not no_attach,
        force=force,
    )
    if dry_run:
        from hypaware.looking import without_trace

        context.with_resource(without_trace())
    plan = _plan(choices)
    _refuse_unknown(clients, plan.found)
    if asks:
        from hypaware.cli.setup_questions import ask

        plan = ask(plan)
    try:
        result = _run(plan, dry_run, as_json)
    except Cancelled:
        output.note("what was done stays done; hyp setup goes on from there")
        raise
    except HypError as error:
        raise _with_way_out(error, context) from None
    _answer(result, as_json)


def _plan(choices: Choices) -> Plan:
    from datetime import UTC, datetime
    from pathlib import Path

    from hypaware import plugins
    from hypaware.home import Home, cache_dir
    from hypaware.setup import finding
    from hypaware.setup.plan import Plan

    for plugin, _ in plugins.inspect(plugins.CLIENTS):
        if plugin.error is not None:
            output.warn(f"the client {plugin.name}, from {plugin.distribution}, is broken: {plugin.error}")
    home, now = Home.from_environment(), datetime.now(UTC)
    variables = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
    return Plan(home, cache_dir(), choices, finding.clients(home, variables, now), variables, now)


def _refuse_unknown(names: Sequence[str], found: Sequence[FoundClient]) -> None:
    known = [each.name for each in found]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no client {name!r}.{nearest(name, known)}", kind="unknown_client")


def _run(plan: Plan, dry_run: bool, as_json: bool) -> Result:
    from hypaware.cli import setup_summary
    from hypaware.cli.progress import display
    from hypaware.setup import run

    shown = display()
    try:
        if dry_run:
            result = run.foretell(plan, _listener(shown, tells=False))
        else:
            result = run.perform(plan, _listener(shown, tells=True))
    finally:
        shown.clear()
    if not as_json:
        setup_summary.show(result, plan)
    return result


def _listener(shown: Display, *, tells: bool) -> Listener:
    from hypaware.cli import setup_summary
    from hypaware.cli.jobs import event_handler
    from hypaware.setup.plan import Listener, Step

    def step(taken: Step) -> None:
        shown.clear()
        setup_summary.tell(taken, sys.stderr)

    event = event_handler(shown, output.write_bytes)
    return Listener(step, shown.report, event) if tells else Listener(progress=shown.report, event=event)


def _answer(result: Result, as_json: bool) -> None:
    from hypaware.cli.failure import PartlyFailed

    if not result.failed:
        if as_json:
            output.emit_json(result.as_json())
        return
    first = result.failed[0].error
    assert first is not None
    names = ", ".join(dict.fromkeys(step.name for step in result.failed))
    repair = dict.fromkeys(command for step in result.failed for command in step.later)
    failure = PartlyFailed(
        f"not everything is done ({names}): {first.message}", result.as_json(), kind=first.kind, repair=tuple(repair)
    )
    failure.exit_code = first.exit_code
    raise failure


def _with_way_out(error: HypError, context: click.Context) -> HypError:
    """Where only the user's word is missing: the same call, with it."""
    from hypaware.setup.configuring import WOULD_CHANGE

    if error.kind == WOULD_CHANGE:
        error.repair = (_call(context, "--force"), *error.repair)
    return error


def _call(context: click.Context, more: str) -> str:
    import shlex

    words = ["hyp", "setup"]
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if isinstance(param, click.Argument):
            words += [value] if value else []
        elif value is True:
            words.append(param.opts[0])
        elif value not in (None, False, ()):
            several = value if param.multiple else (value,)
            for each in several:
                words += [
                    param.opts[0],
                    *(str(part) for part in (each if isinstance(each, tuple) else (each,)) if part),
                ]
    return shlex.join([*words, more])
