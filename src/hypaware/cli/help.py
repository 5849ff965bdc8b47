"""`hyp help`: the pages of the documentation in the pager, and the help of commands. `hyp completion`: shells.

The pages are found by `hypaware.cli.help_pages`.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence

import click

from hypaware.cli import output
from hypaware.cli.command import Command
from hypaware.cli.help_pages import find_pages, list_topics
from hypaware.cli.pager import print_paged
from hypaware.cli.value_completion import SHELLS
from hypaware.errors import HypError, UsageError
from hypaware.text import did_you_mean

_WIDEST = 100
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@click.command(
    "help", cls=Command, examples=["hyp help", "hyp help delivery", "hyp help query sql", "hyp help usage | less"]
)
@click.argument("topic", nargs=-1, metavar="[TOPIC]...")
def help_(topic: tuple[str, ...]) -> None:
    """Read a page of the documentation, or the help of a command. Without TOPIC, list the topics."""
    if not topic:
        output.emit_table(["topic", "about"], list_topics())
        output.note("to read one: hyp help TOPIC; the options of a command: hyp COMMAND --help")
        return
    pages = find_pages()
    if len(topic) == 1 and topic[0] in pages:
        print_paged([_render(pages[topic[0]].read_text(encoding="utf-8"))])
    elif (text := _command_help(topic)) is not None:
        print_paged([f"{text}\n"])
    else:
        words = " ".join(topic)
        raise HypError(
            f"no help for {words!r}.{did_you_mean(words, list(pages))}", kind="unknown_topic", repair="hyp help"
        )


@click.command(
    "completion",
    cls=Command,
    examples=[
        'eval "$(hyp completion bash)"                                  # in ~/.bashrc',
        'eval "$(hyp completion zsh)"                                   # in ~/.zshrc, after compinit',
        "hyp completion fish > ~/.config/fish/completions/hyp.fish",
    ],
)
@click.argument("shell")
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options, sessions, projects, sinks and datasets."""
    from click.shell_completion import get_completion_class

    if shell not in SHELLS:
        raise UsageError(f"SHELL must be one of {', '.join(SHELLS)}, not {shell!r}")
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None
    # The variable with which the script makes `hyp` complete; see `hypaware.cli.main`.
    output.write_bytes(found(root, {}, "hyp", "_HYP_COMPLETE").source().encode() + b"\n")


def _command_help(words: Sequence[str]) -> str | None:
    root = click.get_current_context().find_root().command
    command: click.Command | None = root
    context = click.Context(root, info_name="hyp", max_content_width=_WIDEST)
    for word in words:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            return None
        context = click.Context(command, info_name=word, parent=context)
    return context.get_help()


def _render(page: str) -> str:
    """Format a page for the terminal. Other outputs get the Markdown."""
    text = _COMMENT.sub("", page)
    if not sys.stdout.isatty():
        return text
    from io import StringIO

    from rich.console import Console
    from rich.markdown import Markdown

    made = StringIO()
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    Console(file=made, force_terminal=True, width=width).print(Markdown(text, hyperlinks=False))
    return made.getvalue()
