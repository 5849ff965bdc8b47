"""Reading commands start without click if their arguments are plain; click and the plain parser agree on the values."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from hypaware.cli import output, reader_commands
from hypaware.cli.reader_arguments import COMMANDS, parse_plainly
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.state.home_opener import open_home
from tests.support.edited_lake import add_file, stored_row
from tests.support.rows import rows

PLAIN = (
    "sessions",
    "sessions --json",
    "sessions --project shop --client claude --model opus --since 7d --until 2026-11-15 --machine m --timezone UTC",
    "sessions --project=shop --errors --grep 'two words' --sort cost --limit 0",
    "sessions --limit 5 --limit 6 --errors --errors",
    "sessions --project ''",
    "usage --by week --limit 3",
    "usage --statusline",
    "overview --days 7 --client codex",
    "search one two",
    "search --role user one --type text --limit 0 two",
    "search -- --force -x",
    "search one - two",
    "search a=b --tool=Bash",
    "show",
    "show 0dc91b82",
    "show --last --project shop --thinking --full --redact --follow",
    "show 0dc9 -f --json",
    "show 0dc9 -o out.html --format html",
    "show --output=out.md -- -0dc9",
)
FOR_CLICK = (
    "",
    "sessions --help",
    "sessions -h",
    "sessions --limi 5",
    "sessions --limit",
    "sessions --limit -1",
    "sessions --limit x",
    "sessions --limit ²",
    "sessions --errors=yes",
    "sessions --sort size",
    "sessions extra",
    "sessions --no-such",
    "sessions --project --json",
    "overview --days 0",
    "overview --days 36501",
    "usage --by",
    "search",
    "search --json",
    "search -x",
    "show one two",
    "show one -oout.md",
    "show one -o=out.md",
    "show one -o -",
    "show one --format xml",
    "show -ft",
    "tail",
)


def parse_with_click(args: list[str]) -> dict[str, Any]:
    command = getattr(reader_commands, args[0])
    assert isinstance(command, click.Command)
    output.reset()
    context = command.make_context(args[0], args[1:])
    return {**context.params, "as_json": output.wants_json()}


@pytest.mark.parametrize("line", PLAIN)
def test_plain_arguments_have_the_values_that_click_gives_them(line: str) -> None:
    args = shlex.split(line)

    assert parse_plainly(args) == parse_with_click(list(args))


@pytest.mark.parametrize("line", FOR_CLICK)
def test_arguments_that_are_not_plain_are_left_to_click(line: str) -> None:
    assert parse_plainly(shlex.split(line)) is None


@pytest.mark.parametrize("name", ["HYP_CRASH_AT", "_HYP_COMPLETE"])
def test_crash_points_and_completion_are_left_to_click(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")

    assert parse_plainly(["sessions"]) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_click_knows_the_same_options(command: str) -> None:
    declared = {param.name for param in getattr(reader_commands, command).params}

    assert declared - {"words", "session"} == {option.name for option in COMMANDS[command]} | {"as_json"}


@pytest.mark.parametrize("line", ["sessions", "usage --by model", "search text", "sessions --json", "show --last"])
def test_a_plain_reading_command_imports_neither_click_nor_rich(tmp_path: Path, line: str) -> None:
    home = Home(tmp_path / "home")
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(3), 1)])
    for path in (home.mirror, home.catalog):
        os.utime(path, (1, 1))  # a file that was just written does not count as known
    refresh_index(home)
    script = (
        "import json, sys\nfrom hypaware.cli import entry\ncode = entry.run()\n"
        "loaded = [name for name in ('click', 'rich.console', 'pyarrow', 'asyncio') if name in sys.modules]\n"
        "sys.stderr.write('\\n' + json.dumps([code, loaded]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *shlex.split(line)],
        capture_output=True,
        text=True,
        env={**os.environ, "HYP_HOME": str(home.root)},
        check=True,
    )

    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]
    assert done.stdout
