"""`hyp setup`: set up HypAware on this machine, or repair an existing setup."""

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
    """`keep-local`, `local-parquet` or `server`, optionally followed by a space and the destination."""

    name = "export"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "keep-local|local-parquet|server URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        from hypaware.setup.choices import EXPORTS

        kind, _, place = str(value).strip().partition(" ")
        if kind not in EXPORTS:
            self.fail(f"unknown export {kind!r}.{nearest(kind, EXPORTS)}", param, ctx)
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
@click.option("--yes", "-y", is_flag=True, help="Ask nothing and use the defaults.")
@click.option(
    "--client", "clients", multiple=True, metavar="claude|codex", help="Set up only this client; repeat for several."
)
@click.option(
    "--export",
    type=_ExportParam(),
    help="Where to deliver rows besides the local lake; local-parquet takes an optional FOLDER.",
)
@click.option("--token-file", metavar="FILE", help="File with the server's token, for --export server.")
@click.option("--retention-days", type=click.IntRange(min=0), help="Keep rows for this many days; 0 means forever.")
@click.option("--no-daemon", is_flag=True, help="Do not start the daemon, and do not attach clients.")
@click.option("--no-attach", is_flag=True, help="Do not change the settings of clients.")
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
    no_attach: bool,
    no_backfill: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Set up HypAware: write the config, install the engine, import history, start the daemon, attach clients.

    Without options it asks questions; with any option except --json it asks nothing. You can run it again at any time:
    it keeps the config, adds and repairs what is missing, and imports new history.
    """
    from hypaware.setup.choices import Choices, export_of

    # `--json` alone is not a choice: it must not attach clients without a question.
    given = (name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    asks = not any(name != "as_json" for name in given)
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("no terminal to ask questions on, and no option was given", repair="hyp setup --yes")
    kind, destination = export or (None, None)
    if place is not None and destination is not None:
        raise UsageError(f"--export has two destinations: {destination} and {place}")
    choices = Choices(
        clients=clients or None,
        export=export_of(kind, destination or place, token_file),
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
    _check_clients(clients, plan.found)
    if asks:
        from hypaware.cli.setup_questions import ask

        plan = ask(plan)
    try:
        result = _run(plan, dry_run, as_json)
    except Cancelled:
        output.note("completed steps are kept; run hyp setup again to continue")
        raise
    except HypError as error:
        raise _with_repair(error, context) from None
    _finish(result, as_json)


def _plan(choices: Choices) -> Plan:
    from datetime import UTC, datetime
    from pathlib import Path

    from hypaware import plugins
    from hypaware.home import Home, cache_dir
    from hypaware.setup import finding
    from hypaware.setup.plan import Plan

    for plugin, _ in plugins.inspect(plugins.CLIENTS):
        if plugin.error is not None:
            output.warn(f"cannot load the client {plugin.name} from {plugin.distribution}: {plugin.error}")
    home, now = Home.from_environment(), datetime.now(UTC)
    variables = {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}
    return Plan(home, cache_dir(), choices, finding.clients(home, variables, now), variables, now)


def _check_clients(names: Sequence[str], found: Sequence[FoundClient]) -> None:
    known = [each.name for each in found]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown client {name!r}.{nearest(name, known)}", kind="unknown_client")


def _run(plan: Plan, dry_run: bool, as_json: bool) -> Result:
    from hypaware.cli import setup_summary
    from hypaware.cli.progress import display
    from hypaware.setup import run

    bar = display()
    try:
        if dry_run:
            result = run.foretell(plan, _listener(bar, print_steps=False))
        else:
            result = run.perform(plan, _listener(bar, print_steps=True))
    finally:
        bar.clear()
    if not as_json:
        setup_summary.show(result, plan)
    return result


def _listener(bar: Display, *, print_steps: bool) -> Listener:
    from hypaware.cli import setup_summary
    from hypaware.cli.jobs import event_handler
    from hypaware.setup.plan import Listener, Step

    def on_step(step: Step) -> None:
        bar.clear()
        setup_summary.tell(step, sys.stderr)

    event = event_handler(bar, output.write_bytes)
    return Listener(on_step, bar.report, event) if print_steps else Listener(progress=bar.report, event=event)


def _finish(result: Result, as_json: bool) -> None:
    from hypaware.cli.failure import PartlyFailed

    if not result.failed:
        if as_json:
            output.emit_json(result.as_json())
        return
    first = result.failed[0].error
    assert first is not None
    names = ", ".join(dict.fromkeys(step.name for step in result.failed))
    repair = dict.fromkeys(command for step in result.failed for command in step.commands)
    failure = PartlyFailed(
        f"setup is incomplete ({names}): {first.message}", result.as_json(), kind=first.kind, repair=tuple(repair)
    )
    failure.exit_code = first.exit_code
    raise failure


def _with_repair(error: HypError, context: click.Context) -> HypError:
    """Suggest the same command with --force if the config would change."""
    from hypaware.setup.configuring import WOULD_CHANGE

    if error.kind == WOULD_CHANGE:
        error.repair = (_command_line(context, "--force"), *error.repair)
    return error


def _command_line(context: click.Context, extra: str) -> str:
    """Return the command line of this call, with one more option."""
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
    return shlex.join([*words, extra])
