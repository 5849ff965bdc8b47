"""`hyp help` shows the pages of the documentation and the help of commands."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from hypaware.cli.help_pages import find_pages, list_topics
from hypaware.home import Home
from tests.support.command import HYP
from tests.support.pseudo_terminal import PseudoTerminal

Run = Callable[..., tuple[int, str, str]]


def test_every_page_is_a_topic_with_its_heading(hyp: Run, home: Home) -> None:
    code, out, err = hyp("help")
    assert code == 0
    assert {"delivery", "install", "changelog", "windows"} <= find_pages().keys()
    assert all(name in out and about for name, about in list_topics())
    assert "hyp help TOPIC" in err
    assert not home.root.exists()


@pytest.mark.parametrize("topic", find_pages())
def test_a_page_is_printed_as_markdown_outside_a_terminal(hyp: Run, topic: str) -> None:
    code, out, _ = hyp("help", topic)
    assert code == 0
    assert out.startswith("# ")
    assert "<!--" not in out


def test_a_page_is_formatted_on_a_terminal(home: Home) -> None:
    environment = {**os.environ, "HYP_HOME": str(home.root), "PAGER": "cat"}
    with PseudoTerminal([str(HYP), "help", "glossary"], environment) as terminal:
        terminal.expect("Glossary")
        assert terminal.end() == 0
        assert "# Glossary" not in terminal.shown


def test_the_help_of_a_command_is_found_by_its_words(hyp: Run) -> None:
    code, out, _ = hyp("help", "engine", "bundle")
    assert code == 0
    assert out.startswith("Usage: hyp engine bundle")


def test_an_unknown_topic_names_the_nearest_one(hyp: Run) -> None:
    code, _, err = hyp("help", "delivry")
    assert code == 1
    assert "Did you mean delivery?" in err
