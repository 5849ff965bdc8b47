"""The output of the demo: chapters, commands as you would type them, and their output as it appears."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

_MARGIN = "   "
_WIDTH = 100
_chapters = count(1)


class PromiseBroken(Exception):
    """A check of the demo failed."""


def expect(is_true: bool, what: str) -> None:
    if not is_true:
        raise PromiseBroken(what)


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def chapter(title: str, *about: str) -> None:
    say("", bold(f"{next(_chapters)}. {title}"))
    explain(*about)


def explain(*paragraphs: str) -> None:
    """Print paragraphs; an empty one is an empty line."""
    width = min(_WIDTH, shutil.get_terminal_size().columns - 1)
    for text in paragraphs:
        say(textwrap.fill(text, width, initial_indent=_MARGIN, subsequent_indent=_MARGIN))


def show(words: Sequence[str], note: str = "") -> None:
    """Print a command before it runs; `note` is the rest of the shell line, such as a redirection."""
    say("", f"{_MARGIN}$ {' '.join(map(typed, words))}{note}")


def print_output(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        say(f"{_MARGIN}  {line.decode(errors='replace').rstrip()}".rstrip())


def run(
    words: Sequence[str], program: Sequence[str | Path], environment: Mapping[str, str], folder: Path, note: str = ""
) -> int:
    """Print the command as `words`, run `program`, print its output, and return its exit code."""
    show(words, note)
    with subprocess.Popen(
        program, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            print_output(process)
        except BaseException:
            process.terminate()
            raise
    return process.returncode


def typed(word: str) -> str:
    """Quote a word for the shell. Assignments and variables stay bare; SQL keeps its lines in double quotes."""
    name, equals, value = word.partition("=")
    if equals and name.isupper() and not set(value) & set(" '\"\\"):
        return word
    if " " in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'.replace("\n", f"\n{_MARGIN}  ")
    return shlex.quote(word).replace("\n", f"\n{_MARGIN}  ")
