"""Start-up: `--help` imports nothing heavy, and every help text is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hypaware.cli.command import Group
from hypaware.cli.main import TABLE, hyp
from hypaware.index.refresh import refresh_index
from tests.support.index_home import make_home, prompt

HEAVY = (
    "duckdb fastavro importlib.metadata opentelemetry orjson pyarrow pyiceberg py4j pyspark rich sqlalchemy"
    " sqlite3 tomlkit asyncio"
)


# What only writers need. Importing them takes longer than many an answer.
OF_WRITERS = "dataclasses inspect socket subprocess uuid hypaware.home.identity"


def modules_after(*args: str, of: str = HEAVY) -> set[str]:
    """Return which of these modules a command has imported."""
    script = (
        "import sys\nfrom hypaware.cli import entry\n"
        "code = entry.run()\n"
        f"sys.stderr.write(' '.join(name for name in {of.split()!r} if name in sys.modules))\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split()) & set(of.split())


@pytest.mark.parametrize("command", ["sessions", "usage"])
def test_a_list_imports_nothing_that_only_writers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    home = make_home(tmp_path / "home", prompt(1, "Hello", at="2026-11-14T08:00:00Z"))
    for path in home.root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    refresh_index(home)
    monkeypatch.setenv("HYP_HOME", str(home.root))

    assert modules_after(command, of=OF_WRITERS) == set()


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(hyp))


def test_help_imports_nothing_heavy_and_no_command() -> None:
    script = (
        "import sys\nfrom hypaware.cli import entry\nentry.run(['--help'])\n"
        "sys.stderr.write(' '.join(sorted(m for m in sys.modules if m.startswith('hypaware'))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = set(done.stderr.split())
    assert modules_after("--help") == set()
    assert not loaded & {f"hypaware.cli.{entry.target.partition(':')[0]}" for entry in TABLE}


@pytest.mark.parametrize("name", [entry.name for entry in TABLE])
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    assert modules_after(name, "--help") == set()


def test_version_imports_no_spark_and_starts_no_telemetry() -> None:
    assert not modules_after("version", "--json") & {
        "pyspark",
        "pyarrow",
        "sqlalchemy",
        "opentelemetry",
        "rich",
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_text_describes_the_command_and_has_an_example(path: tuple[str, ...]) -> None:
    command = ALL[path]
    text = command.get_help(click.Context(command, info_name=" ".join(("hyp", *path))))

    assert command.help
    example = text.partition("\nExample")[2].partition(":\n")[2]
    assert " ".join(("hyp", *path)) in example


def test_the_table_of_commands_agrees_with_the_commands() -> None:
    for entry in TABLE:
        assert ALL[(entry.name,)].name == entry.name
        assert entry.about.endswith(".")


def test_an_alias_runs_the_same_command_and_is_shown_next_to_it(capfd: pytest.CaptureFixture[str]) -> None:
    from hypaware.cli import entry
    from hypaware.cli.command import CommandEntry, RootGroup

    table = [CommandEntry("version", "installation:version", "Versions.", aliases=("about",))]
    root = RootGroup("hyp", table=table, examples=["hyp version"])

    assert entry.run(["about", "--json"], root) == 0
    assert '"hypaware"' in capfd.readouterr().out
    assert entry.run(["--help"], root) == 0
    assert "version (about)" in capfd.readouterr().out


@pytest.mark.parametrize("path", [path for path, each in ALL.items() if isinstance(each, Group)], ids=" ".join)
def test_the_help_of_a_group_describes_each_subcommand_in_a_whole_sentence(path: tuple[str, ...]) -> None:
    text = ALL[path].get_help(click.Context(ALL[path], info_name=" ".join(("hyp", *path)), terminal_width=80))
    subcommands = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert subcommands.endswith((".", ")"))
    assert "..." not in subcommands


def test_groups_have_examples_like_commands() -> None:
    assert all(command.examples for command in ALL.values() if isinstance(command, Group))


def test_each_line_of_the_help_starts_with_the_name_of_a_command() -> None:
    lines = (
        hyp.get_help(click.Context(hyp, info_name="hyp")).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    )
    named = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert named == [entry.name for entry in TABLE if not entry.hidden]


@pytest.mark.parametrize("args", [("status",), ("status", "--json")])
def test_ctrl_c_during_loading_cancels_the_command(args: tuple[str, ...]) -> None:
    script = textwrap.dedent(
        """
        import sys
        from hypaware.cli import entry

        class Interrupted:
            def find_spec(self, name, path=None, target=None):
                if name == "hypaware.cli.main":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupted())
        sys.exit(entry.run())
        """
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True)
    assert done.returncode == 130
    if "--json" in args:
        assert (json.loads(done.stdout)["error"]["kind"], done.stderr) == ("cancelled", "")
    else:
        assert (done.stdout, done.stderr) == ("", "cancelled\n")


@pytest.mark.parametrize(
    ("closed", "args", "code"),
    [
        ("<&-", "setup --json", 2),
        ("<&-", "purge --session x --unknown --json", 2),
        ("<&-", "ingest ai_gateway_messages --json", 0),
        (">&-", "config path --json", 0),
        ("2>&-", "config set nosuch 1", 1),
        ("<&- >&- 2>&-", "config path", 0),
        (">/dev/full", "config path --json", 1),
    ],
)
def test_a_closed_or_full_standard_stream_does_no_harm(tmp_path: Path, closed: str, args: str, code: int) -> None:
    line = f'exec "$0" -m hypaware.cli {args} {closed}'
    result = {**os.environ, "HYP_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, env=result)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in args and ">" not in closed:
        assert code == 0 or json.loads(done.stdout)["error"]["kind"] in ("usage", "not_confirmed")
