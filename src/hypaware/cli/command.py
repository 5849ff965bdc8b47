"""The click classes of all commands: examples in the help, lazy loading, "did you mean" for mistyped names.

`hyp --help` must not import the modules of the commands. The root group therefore takes a table with the name and the
help line of each command, and imports a command's module only when the command is called.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from hypaware.cli import output, value_completion
from hypaware.errors import UsageError
from hypaware.text import did_you_mean

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    expose_value=False,
    callback=output.use_json,
    help="Print the result as one JSON document.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
# More characters than any first sentence has.
_FIRST_SENTENCE = 1000


@dataclass(frozen=True)
class CommandEntry:
    """One command of the root group: its `target` in this package ("module:attribute") and its line in `hyp --help`."""

    name: str
    target: str
    about: str
    aliases: tuple[str, ...] = ()
    hidden: bool = False
    """Omit it from `hyp --help`: it is not for interactive use."""


class Command(click.Command):
    """A command whose help ends with examples, which are mandatory.

    Unless `any_crash_point` is set, the command fails if HYP_CRASH_AT names an unknown crash point.
    """

    def __init__(self, *args: Any, examples: Sequence[str], any_crash_point: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        for parameter in self.params:
            if parameter.name in value_completion.VALUES and not isinstance(parameter.type, click.Choice):
                parameter.shell_complete = self._complete_value(parameter.name)  # type: ignore[assignment,method-assign]
        self._any_crash_point = any_crash_point

    def _complete_value(self, name: str) -> Callable[[click.Context, str], list[CompletionItem]]:
        def complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
            found = value_completion.complete_value(name, incomplete)
            # What follows a group that is also a command may be one of its subcommands.
            if isinstance(self, click.Group) and not ctx.args:
                found += [CompletionItem(each) for each in self.commands if each.startswith(incomplete)]
            return found

        return complete

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with add_usage_context(ctx):
            rest = super().parse_args(ctx, args)
        self._check_crash_point(ctx)
        return rest

    def _check_crash_point(self, ctx: click.Context) -> None:
        # A test that uses an unknown crash point would prove nothing.
        if not (self._any_crash_point or ctx.resilient_parsing) and (spec := os.environ.get("HYP_CRASH_AT")):
            from hypaware import faults

            faults.check_spec(spec)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Example" if len(self.examples) == 1 else "Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Group(Command, click.Group):
    """A command with subcommands, e.g. `hyp config`. The subcommands check the crash point."""

    command_class = Command

    def __init__(self, *args: Any, any_crash_point: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, any_crash_point=any_crash_point, **kwargs)

    def suggested(self, ctx: click.Context) -> list[str]:
        """Return the names to suggest for a mistyped command."""
        return self.list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands with their whole first sentence, which click would cut off at the end of the line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, each.get_short_help_str(_FIRST_SENTENCE))
                    for name, each in commands
                    if each and not each.hidden
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.get_command(ctx, name) is not None
        if not known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command: {name!r}.{did_you_mean(name, self.suggested(ctx))}")
        found, command, rest = super().resolve_command(ctx, args)
        # The groups before a subcommand neither parse nor run, and do not appear as groups in its usage line.
        while isinstance(command, RunnableGroup) and rest and rest[0] in command.commands:
            found, command, rest = f"{found} {rest[0]}", command.commands[rest[0]], rest[1:]
        return found, command, rest


class RunnableGroup(Group):
    """A group that is also a command: `hyp backfill claude` runs the group itself, `hyp backfill list` a subcommand.

    If the first argument is the name of a subcommand, the group that it is in resolves to that one. Otherwise all
    arguments belong to this group.
    """

    allow_interspersed_args = True
    # The usage is that of a command; the help lists the subcommands below it.
    collect_usage_pieces = click.Command.collect_usage_pieces

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, any_crash_point=False, invoke_without_command=True, no_args_is_help=False, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with add_usage_context(ctx):
            rest = click.Command.parse_args(self, ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            name = ctx.args[0]
            if name in self.commands:
                ctx.fail(f"Put options after the subcommand: {ctx.command_path} {name} …")
            ctx.fail(f"No such command: {name!r}.{did_you_mean(name, self.suggested(ctx))}")
        self._check_crash_point(ctx)
        return rest


class RootGroup(Group):
    """The `hyp` command: takes its help from the table and imports a command's module when it is called."""

    def __init__(self, *args: Any, table: Iterable[CommandEntry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = tuple(table)
        self._by_name = {name: entry for entry in self.table for name in (entry.name, *entry.aliases)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in self.table]

    def suggested(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in self.table if not entry.hidden]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table, without importing the commands."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        shown = (entry for entry in self.table if not entry.hidden)
        return [CompletionItem(entry.name, help=entry.about) for entry in shown if entry.name.startswith(incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._by_name.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(f"hypaware.cli.{module}"), attribute)
        assert isinstance(command, click.Command), f"{entry.target} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            # The name is before the aliases, so that a program that parses the help finds it first.
            formatter.write_dl(
                [
                    (f"{entry.name} ({', '.join(entry.aliases)})" if entry.aliases else entry.name, entry.about)
                    for entry in self.table
                    if not entry.hidden
                ]
            )


@contextmanager
def add_usage_context(ctx: click.Context) -> Iterator[None]:
    """Add the command to a usage error: click omits it if an option lacks its value."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def parse_duration(option: str, text: str, *, bare_seconds: bool = False) -> float:
    """Return the seconds of a duration such as 90s or 10m. `bare_seconds` also accepts a number without a unit."""
    from hypaware.config.values import DURATION

    try:
        return float(text) if bare_seconds and text.isdecimal() else float(DURATION.read(text))
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(f"{option} {text!r}{reason}: expected {DURATION.expected}, such as 90s or 10m") from None
