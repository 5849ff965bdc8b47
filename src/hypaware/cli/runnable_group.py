"""A group that is a command as well: `hyp backfill claude` runs it, `hyp backfill list` runs a command of it.

What follows the group's name is one of its commands if it is called like one; everything else belongs to the group's
own options and arguments.
"""

from __future__ import annotations

from typing import Any

import click

from hypaware.cli.group import Group, check_crash_point, whose_usage
from hypaware.nearest import nearest


class RunnableGroup(Group):
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
                ctx.fail(f"Options stand behind the command: {ctx.command_path} {name} …")
            ctx.fail(f"There is no command {name!r}.{nearest(name, self.suggested(ctx))}")
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.invoked_subcommand is None:
            check_crash_point()
            return click.Command.invoke(self, ctx)
        name, command, args = self.resolve_command(ctx, ctx.args)
        assert command is not None
        # The group itself took nothing, so its arguments do not belong into the command's usage.
        with command.make_context(f"{ctx.info_name} {name}", args, parent=ctx.parent) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Of the group as a command; its commands have lines of their own below."""
        return click.Command.collect_usage_pieces(self, ctx)
