"""`hyp search` on a home whose rows are in the spool."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from hypaware import Spool, open_lake
from hypaware.errors import UsageError
from hypaware.home import Home
from tests.support.command import HYP
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.rows import DATASET, row
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


def record(home: Home, *texts: str, **columns: object) -> None:
    Spool(home.root).append(DATASET, [row(at, content_text=text, **columns) for at, text in enumerate(texts)])


def test_words_are_found_in_rows_that_are_not_committed_yet(home: Home, hyp: Run) -> None:
    record(home, "the deploy failed", "the deploy went well", "nothing else")

    code, out, err = hyp("search", "deploy", "failed", "--json")

    found = json.loads(out)
    assert (code, found["total"], found["total_is_exact"], err) == (0, 1, True, "")
    assert found["hits"] == [
        {
            "part_id": "message-0#0",
            "session_id": "session-1",
            "at": "2026-11-15T07:00:00Z",
            "role": "assistant",
            "part_type": "text",
            "tool_name": None,
            "project": None,
            "client": "claude",
            "snippet": "the ⟦deploy failed⟧",
        }
    ]


def test_the_text_has_one_block_per_hit_without_marks_or_colour_in_a_pipe(home: Home, hyp: Run) -> None:
    record(home, "the deploy failed", cwd="/home/me/shop")

    code, out, err = hyp("search", '"deploy failed"', "--timezone", "UTC")

    assert (code, out) == (
        0,
        "session-  2026-11-15 07:00  shop  claude  assistant  text\n    the deploy failed\n",
    )
    assert err == "\n1 match, best first. Read a session: hyp show session-\n"


def test_a_limit_says_that_there_is_more(home: Home, hyp: Run) -> None:
    record(home, *(f"fox {at}" for at in range(30)))

    code, out, err = hyp("search", "fox", "--limit", "7")
    _, everything, _ = hyp("search", "fox", "--limit", "0", "--json")

    assert (code, out.count("\n    fox")) == (0, 7)
    assert "30 matches, best first; 7 shown (use --limit to see more)" in err
    assert len(json.loads(everything)["hits"]) == 30


def test_hostile_text_cannot_write_to_the_terminal(home: Home, hyp: Run) -> None:
    record(home, "fox \x1b]0;title\x07 \x1b[2J \r over \u202e ⟦not a mark⟧ \x02\x03\nend")

    _, out, _ = hyp("search", "fox")
    _, document, _ = hyp("search", "fox", "--json")

    assert not set(out) & set("\x1b\x07\r\x02\x03\u202e")
    assert out.count("\n") == 2
    assert json.loads(document)["hits"][0]["snippet"].count("⟦") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (('"open',), "the quote at character 1 is not closed"),
        (("fox", "*"), "the * at character 5"),
        (("🎉",), "has no letter and no digit"),
    ],
)
def test_words_that_cannot_be_parsed_are_a_usage_error(
    home: Home, hyp: Run, words: tuple[str, ...], message: str
) -> None:
    record(home, "fox")

    code, out, _ = hyp("search", *words, "--json")

    assert (code, json.loads(out)["error"]["kind"]) == (2, "search_syntax")
    assert message in json.loads(out)["error"]["message"]


def test_words_that_begin_with_a_dash_follow_two_dashes(home: Home, hyp: Run) -> None:
    record(home, "git push --force", "git push")

    code, out, _ = hyp("search", "--json", "--", "--force")
    refused, _, err = hyp("search", "--force")

    assert (code, json.loads(out)["total"]) == (0, 1)
    assert refused == 2
    assert "put -- before them" in err


def test_nothing_found_explains_itself(home: Home, hyp: Run) -> None:
    record(home, "fox", tool_name="Bash", part_type="tool_call", client_name="claude")

    code, out, err = hyp("search", "wolf")
    assert (code, out) == (0, "")
    assert "nothing matches" in err
    assert "Did you mean Bash?" in hyp("search", "fox", "--tool", "Bsh")[2]
    assert "Did you mean user?" in hyp("search", "fox", "--role", "usr")[2]
    assert "no recorded session has the client codex" in hyp("search", "fox", "--client", "codex")[2]


def test_punctuation_alone_is_ignored_with_a_note(home: Home, hyp: Run) -> None:
    record(home, "fox dog")

    code, _, err = hyp("search", "fox", "&&", "dog")

    assert code == 0
    assert "&& was ignored" in err


def test_without_text_in_the_index_the_error_names_the_setting(home: Home, hyp: Run) -> None:
    record(home, "fox")
    (home.root / "config.toml").write_text("version = 1\n[index]\ntext = false\n")

    code, out, _ = hyp("search", "fox", "--json")

    assert (code, json.loads(out)["error"]["kind"]) == (1, "no_text")
    assert json.loads(out)["error"]["repair"] == ["hyp config set index.text true"]
    assert hyp("config", "set", "index.text", "true")[0] == 0
    assert json.loads(hyp("search", "fox", "--json")[1])["total"] == 1


def test_without_a_home_nothing_is_created(home: Home, hyp: Run) -> None:
    code, _, err = hyp("search", "fox")

    assert (code, home.root.exists()) == (3, False)
    assert "hyp setup" in err


def test_the_api_returns_the_same_document(home: Home, hyp: Run) -> None:
    record(home, "the deploy failed", "the deploy went well")

    _, out, _ = hyp("search", "deploy", "--since", "2026-11-15", "--json")
    lake = open_lake(home.root)

    assert lake.search("deploy", since="2026-11-15") == json.loads(out)
    assert lake.search("deploy", until="2026-11-14")["hits"] == []
    with pytest.raises(UsageError):
        lake.search('"deploy')


def test_on_a_terminal_the_words_are_coloured_and_lines_are_wrapped(home: Home) -> None:
    record(home, "the deploy failed " + "again and again " * 20)
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}

    with PseudoTerminal([str(HYP), "search", "deploy"], environment) as terminal:
        assert terminal.end() == 0
        lines = terminal.shown.splitlines()

        assert "\x1b[1;33mdeploy\x1b[0m" in terminal._raw
        assert lines[1].startswith("    the deploy failed again")
        assert lines[2].startswith("    ")
        assert max(map(len, lines)) <= 160


def test_a_reader_that_closes_the_pipe_is_not_an_error(home: Home) -> None:
    record(home, *(f"fox {at} {'word ' * 200}" for at in range(300)))

    done = subprocess.run(
        f"{HYP} search fox --limit 0 | head -1", shell=True, capture_output=True, text=True, check=False
    )

    assert done.stdout.startswith("session-")
    assert "Traceback" not in done.stderr
