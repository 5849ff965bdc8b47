"""Shells complete commands, options and recorded values: fast, without a home, and with what is hostile left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hypaware.cli import value_completion
from hypaware.home import Home
from hypaware.model import datasets
from tests.support.command import HYP
from tests.support.index_home import OPUS, index_of, prompt, response
from tests.unit.cli.test_cli_startup import ALL, HEAVY

SHELLS = ("bash", "zsh", "fish")
CONFIG = """version = 1
[sinks.archive]
kind = "blob"
destination = "/mnt/archive"
[sinks.team]
kind = "blob"
destination = "/mnt/team"
"""


def complete(home: Path, *words: str) -> list[str]:
    """Return what `hyp` offers a shell for the last word."""
    environment = {
        **os.environ,
        "HYP_HOME": str(home),
        "_HYP_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["hyp", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([str(HYP)], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_accepted_by_it(shell: str, tmp_path: Path) -> None:
    done = subprocess.run([str(HYP), "completion", shell], capture_output=True, text=True, check=True)
    (tmp_path / "script").write_text(done.stdout)
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([found, "-n", str(tmp_path / "script")], check=True)


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """The real shell loads the script and runs the function that it registers for `hyp`."""
    version = subprocess.run(["bash", "-c", "echo ${BASH_VERSINFO[0]}"], capture_output=True, text=True, check=True)
    if int(version.stdout) < 5:
        pytest.skip("click's script needs a newer bash than that of macOS")
    script = f"""
    PATH={HYP.parent}:$PATH
    eval "$(hyp completion bash)"
    COMP_WORDS=(hyp eng) COMP_CWORD=1
    function=$(complete -p hyp) function=${{function##*-F }} function=${{function%% *}}
    "$function" hyp eng hyp
    echo "${{COMPREPLY[*]}}"
    """
    environment = {**os.environ, "HYP_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "engine", done.stderr


def test_fish_completes_with_the_script(tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    script = f'set -x PATH {HYP.parent} $PATH; hyp completion fish | source; complete -C "hyp engine bun"'
    environment = {**os.environ, "HYP_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([fish, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("bundle"), done.stderr


def test_commands_subcommands_and_options_are_completed_without_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert {"sessions", "session"} <= set(complete(home, "sess"))
    assert "hook" not in complete(home, "")
    assert "bundle" in complete(home, "engine", "b")
    assert "--since" in complete(home, "sessions", "--s")
    assert "status" in complete(home, "export", "sta")
    assert complete(home, "completion", "") == list(SHELLS)
    assert complete(home, "show", "") == []
    assert not home.exists()


def test_recorded_values_are_completed_from_the_index_and_the_config(home: Home) -> None:
    at = "2026-11-01T10:00:00Z"
    rows = [
        prompt(1, "mend the build", at=at, session_id="a1-first", conversation_id="a1-first"),
        prompt(2, "and the docs", at=at, session_id="a2-second", conversation_id="a2-second", cwd="/home/dev/docs"),
        prompt(3, "hostile", at=at, session_id="a3\nplain,injected", conversation_id="a3", cwd="/home/x\ny"),
        response(4, at=at, session_id="a1-first", conversation_id="a1-first"),
    ]
    with index_of(home.root, *rows):
        pass
    (home.root / "config.toml").write_text(CONFIG)
    before = (home.index.stat().st_mtime_ns, sorted(path.name for path in home.root.iterdir()))
    assert sorted(complete(home.root, "show", "")) == ["a1-first", "a2-second"]
    assert complete(home.root, "session", "ignore", "a2") == ["a2-second"]
    assert complete(home.root, "sessions", "--project", "") == ["docs", "web"]
    assert complete(home.root, "sessions", "--project", "/home/dev/d") == ["/home/dev/docs"]
    assert complete(home.root, "usage", "--model", "claude-o") == [OPUS]
    assert {"archive", "adopt"} <= set(complete(home.root, "export", "a"))
    assert complete(home.root, "export", "adopt", "") == ["archive", "team"]
    assert complete(home.root, "flush", "") == list(datasets.list_names())
    assert (home.index.stat().st_mtime_ns, sorted(path.name for path in home.root.iterdir())) == before


def test_a_damaged_index_or_config_completes_nothing(home: Home) -> None:
    home.root.mkdir()
    home.index.write_bytes(b"not a database" * 100)
    (home.root / "config.toml").write_text("sinks = 3")
    assert complete(home.root, "show", "") == []
    assert complete(home.root, "export", "adopt", "") == []


@pytest.mark.parametrize("words", [("show", ""), ("export", ""), ("sessions", "--project", ""), ("", "")])
def test_completing_imports_nothing_heavy(words: tuple[str, ...], tmp_path: Path) -> None:
    script = (
        "import sys\nfrom hypaware.cli.entry import main\n"
        "try:\n    main([])\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY.split()!r} if name in sys.modules))"
    )
    environment = {
        **os.environ,
        "HYP_HOME": str(tmp_path),
        "_HYP_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["hyp", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) <= {"sqlite3", "tomlkit"}


@pytest.mark.parametrize("words", [("show",), ("session", "ignore"), ("export", "adopt"), ("query", "schema")])
def test_the_parameters_of_a_command_are_found_by_their_names(words: tuple[str, ...]) -> None:
    names = {parameter.name for parameter in ALL[words].params if isinstance(parameter, click.Argument)}
    assert names & value_completion.VALUES.keys()
