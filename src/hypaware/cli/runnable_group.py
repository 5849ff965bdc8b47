"""A group that is also a command: `hyp backfill claude` runs the group itself, `hyp backfill list` a subcommand."""

from __future__ import annotations

from typing import Any

import click

from hypaware.cli.group import Group, check_crash_point, whose_usage
from hypaware.nearest import nearest


class RunnableGroup(Group):
    """A group that can be called without a subcommand.

    If the first argument is the name of a subcommand, that one runs. Otherwise all arguments belong to the group.
    """

    allow_interspersed_args = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, invoke_without_command=True, no_args_is_help=False, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.invoked_subcommand = args[0]
            ctx.args = args
            return args
        with whose_usage(ctx):
            rest = click.Command.parse_args(self, ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            name = ctx.args[0]
            if name in self.commands:
                ctx.fail(f"Put options after the subcommand: {ctx.command_path} {name} …")
            ctx.fail(f"No such command: {name!r}.{nearest(name, self.suggested(ctx))}")
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.invoked_subcommand is None:
            check_crash_point()
            return click.Command.invoke(self, ctx)
        name, command, args = self.resolve_command(ctx, ctx.args)
        assert command is not None
        # The group parsed nothing, so its arguments must not appear in the usage line of the subcommand.
        with command.make_context(f"{ctx.info_name} {name}", args, parent=ctx.parent) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage of the group as a command; the help lists the subcommands below it."""
        return click.Command.collect_usage_pieces(self, ctx)
