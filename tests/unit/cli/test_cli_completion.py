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
from tests.support.pseudo_terminal import CTRL_D, CTRL_U, PseudoTerminal
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
    subprocess.run([find_shell(shell), "-n", str(tmp_path / "script")], check=True)


@pytest.fixture
def recorded(home: Home) -> Home:
    """A home with two sessions in two projects, hostile names, two sinks, and the datasets that there are."""
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
    return home


# What is typed before Tab, and the word that takes its place.
TYPED = [
    pytest.param("hyp engine bun", "bundle", id="command"),
    pytest.param("hyp show a1", "a1-first", id="session"),
    pytest.param("hyp sessions --project do", "docs", id="project"),
    pytest.param("hyp export adopt te", "team", id="sink"),
    pytest.param("hyp flush ai_gateway_m", "ai_gateway_messages", id="dataset"),
    pytest.param("hyp client attach cod", "codex", id="client"),
]


def find_shell(name: str) -> str:
    """Return the path of a shell; `make unit` installs those that can be installed without a prompt."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def shell_environment(home: Path, user: Path) -> dict[str, str]:
    return {**os.environ, "HYP_HOME": str(home), "HOME": str(user), "PATH": f"{HYP.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("typed", "word"), TYPED)
def test_bash_completes_with_the_script(typed: str, word: str, recorded: Home, tmp_path: Path) -> None:
    """The real shell loads the script and runs the function that it registers for `hyp`."""
    version = subprocess.run(["bash", "-c", "echo ${BASH_VERSINFO[0]}"], capture_output=True, text=True, check=True)
    if int(version.stdout) < 5:
        pytest.skip("click's script needs a newer bash than that of macOS")
    script = f"""
    eval "$(hyp completion bash)"
    COMP_WORDS=({typed}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    function=$(complete -p hyp) function=${{function##*-F }} function=${{function%% *}}
    "$function" hyp "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
    echo "${{COMPREPLY[*]}}"
    """
    environment = shell_environment(recorded.root, tmp_path)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == word, done.stderr


@pytest.mark.parametrize(("typed", "word"), TYPED)
def test_fish_completes_with_the_script(typed: str, word: str, recorded: Home, tmp_path: Path) -> None:
    script = f'hyp completion fish | source; complete -C "{typed}"'
    environment = shell_environment(recorded.root, tmp_path)
    done = subprocess.run(
        [find_shell("fish"), "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [word], done.stderr


@pytest.mark.parametrize(("typed", "word"), TYPED)
def test_zsh_completes_with_the_script(typed: str, word: str, recorded: Home, tmp_path: Path) -> None:
    """The real shell reads keys from a terminal: the words, Tab, and one that shows the line as it is then."""
    (tmp_path / ".zshrc").write_text(
        'autoload -U compinit; compinit -u -D; eval "$(hyp completion zsh)"; PS1="ready>"\n'
        'show_line() { print -r -- "<$BUFFER>" }; zle -N show_line; bindkey "^X" show_line\n'
    )
    environment = {**shell_environment(recorded.root, tmp_path), "ZDOTDIR": str(tmp_path)}
    with PseudoTerminal([find_shell("zsh"), "-d", "-i"], environment) as shell:
        shell.expect("ready>")
        shell.press(f"{typed}\t", "\x18")
        shell.expect("<")
        assert shell.expect(">").split() == [*typed.split()[:-1], word]
        shell.press(CTRL_U, CTRL_D)
        shell.end()


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


def test_recorded_values_are_completed_from_the_index_and_the_config(recorded: Home) -> None:
    home = recorded
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
        "import sys\nfrom hypaware.cli import entry\n"
        "try:\n    entry.run([])\nexcept SystemExit:\n    pass\n"
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
