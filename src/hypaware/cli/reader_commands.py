"""The reading commands as click sees them: `hyp sessions`, `hyp show`, `hyp tail`, `hyp usage`, `hyp overview` and
`hyp search`.

Their options, but those of `hyp tail`, are those of `hypaware.cli.reader_arguments`, which also parses them if they are
plain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.reader_arguments import COMMANDS, DAYS, FILTERS, ROWS, ReadingOption, run_reading_command

if TYPE_CHECKING:
    from hypaware.index.filters import Filters

Function = Callable[..., Any]
_LAST_PARTS = 10


def _add_options(options: Iterable[ReadingOption]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for option in reversed(tuple(options)):
            function = _to_click(option)(function)
        return function

    return add


def _to_click(option: ReadingOption) -> Callable[[Function], Function]:
    names = [*filter(None, (option.short, option.flag)), option.name]
    if not option.takes_value:
        return click.option(*names, is_flag=True, help=option.help)
    kind: click.ParamType[Any] = click.STRING
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.least is not None:
        kind = click.IntRange(option.least, option.most)
    elif option.metavar == "PATH":
        kind = click.Path()
    return click.option(
        *names,
        type=kind,
        metavar=option.metavar,
        default=option.default,
        show_default=option.default is not None,
        help=option.help,
    )


def reading_options(function: Function) -> Function:
    """Add the options of the filters. The command gets them as one argument, `filters`."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        from hypaware.index.filters import make_filters

        options = {option.name: given.pop(option.name) for option in FILTERS}
        return function(*args, filters=make_filters(**options), **given)

    return _add_options(FILTERS)(call)


days_option, rows_option = _to_click(DAYS), _to_click(ROWS)


class _SearchCommand(Command):
    """Says how to search for a word that begins like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ctx.fail(f"{error.format_message()} To search for words that begin with a dash, put -- before them.")


@click.command(
    "sessions",
    cls=Command,
    examples=[
        "hyp sessions",
        "hyp sessions --project shop --since 7d",
        "hyp sessions --sort cost --limit 10",
        "hyp sessions --errors --grep 'connection refused' --json",
        "hyp sessions --failed Bash --weekday mon --hour 9",
    ],
)
@_add_options(COMMANDS["sessions"])
@json_option
def sessions(**given: Any) -> None:
    """List the recorded sessions, newest first.

    A session is listed if any of its rows matches the filters; its figures are those of the whole session. On a
    terminal the list ends after 40 sessions, and columns that do not fit are left out; elsewhere it is complete.
    """
    run_reading_command("sessions", given)


@click.command(
    "show",
    cls=Command,
    examples=[
        "hyp show 0dc91b82",
        "hyp show --last --project shop",
        "hyp show 0dc91b82 --redact -o session.html",
        "hyp show --last --follow",
    ],
)
@click.argument("session", required=False, metavar="[ID]")
@_add_options(COMMANDS["show"])
@json_option
def show(**given: Any) -> None:
    """Show the conversation of a session.

    ID is the id of the session, or its beginning. On a terminal the conversation is shown in a pager (PAGER). Results
    are cut to a few lines, thinking to one; subagents are shown below the call that started them. The last line is the
    command that resumes the session in its client.
    """
    run_reading_command("show", given)


@click.command(
    "tail",
    cls=Command,
    examples=["hyp tail", "hyp tail 0dc91b82", "hyp tail --project shop", "hyp tail --json"],
)
@click.argument("session", required=False, metavar="[ID]")
@click.option(
    "-n",
    "--parts",
    type=click.IntRange(min=0),
    default=_LAST_PARTS,
    show_default=True,
    metavar="N",
    help="Start with the last N parts.",
)
@_add_options(option for option in COMMANDS["show"] if option.name in ("redact", "thinking", "full"))
@reading_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    expose_value=False,
    callback=output.use_json,
    help="Print one JSON document per line.",
)
def tail(filters: Filters, **given: Any) -> None:
    """Watch what your agents do, in all sessions or in one, until Ctrl-C.

    Parts appear when they are recorded, even before they are committed to the lake. With --json, each line is one JSON
    document: a message with its new parts, and session_id, client and project. Ctrl-C is the normal end: the exit
    code is 0.
    """
    from hypaware.cli.show import watch_sessions

    watch_sessions(filters, **given)


@click.command(
    "usage",
    cls=Command,
    examples=[
        "hyp usage",
        "hyp usage --by month",
        "hyp usage --by model --since 30d --project shop",
        "hyp usage --by session --since 2026-11-15 --json",
        "hyp usage --statusline",
    ],
)
@_add_options(COMMANDS["usage"])
@json_option
def usage(**given: Any) -> None:
    """Show tokens and what they cost.

    The cost is computed from the list prices of the models' APIs, with cached tokens at their own prices; a
    subscription is billed differently. A model without a price is named and not counted. Set usage.prices in the config
    to use your own prices. Weeks begin on Monday.

    With --statusline, a JSON object on standard input, as Claude Code passes it to its status line, names the current
    session.
    """
    run_reading_command("usage", given)


@click.command(
    "overview",
    cls=Command,
    examples=["hyp overview", "hyp overview --days 7", "hyp overview --project shop --client claude --json"],
)
@_add_options(COMMANDS["overview"])
@json_option
def overview(**given: Any) -> None:
    """Show sessions, messages, tokens, cost and tools, by day, project, client and model."""
    run_reading_command("overview", given)


@click.command(
    "search",
    cls=_SearchCommand,
    examples=[
        "hyp search connection refused",
        "hyp search '\"connection refused\"' --project shop --since 7d",
        "hyp search 'migrat*' --role user",
        "hyp search --tool Bash -- git push --force",
    ],
)
@click.argument("words", nargs=-1, required=True, metavar="WORDS…")
@_add_options(COMMANDS["search"])
@json_option
def search(**given: Any) -> None:
    """Find the parts of recorded sessions that contain all WORDS.

    Case, accents and punctuation do not matter. "…" is a phrase, word* a prefix; a word with punctuation, such as
    src/app.py, is a phrase. The best matches come first; if thousands match, the newest. See docs/search.md.
    """
    run_reading_command("search", given)
