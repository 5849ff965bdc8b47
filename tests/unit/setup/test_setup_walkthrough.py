"""The questions of `hyp setup` on a real terminal: what they show, what answers do, and that quitting changes nothing.

Java is missing, so the engine step fails, which is reported at the end; all other steps are done.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hypaware import config as configuration
from hypaware.daemon import lifecycle
from hypaware.home import Home
from tests.support.command import HYP
from tests.support.pseudo_terminal import CTRL_C, CTRL_D, CTRL_U, DOWN, ENTER, ESCAPE, PseudoTerminal
from tests.unit.setup.conftest import tree

NO_JAVA = 3
SPACE = " "
QUESTIONS = {
    "Which clients do you want to record?": (ENTER,),
    "Where do you want to deliver rows?": (DOWN, DOWN, ENTER),
    "What is the server's address?": ("https://hyp.example", ENTER),
    "Which file holds the token?": (ENTER,),
    "How long do you want to keep rows?": (DOWN, DOWN, DOWN, DOWN, ENTER),
    "How many days?": ("17", ENTER),
    "Import their history": ("y",),
    "Record new sessions while they happen?": ("n",),
}


def terminal(**more: str) -> PseudoTerminal:
    return PseudoTerminal([str(HYP), "setup"], {**os.environ, **more})


def config(home: Home) -> dict[str, Any]:
    return tomllib.loads(home.config.read_text())


def test_answers_become_the_config_and_the_steps(user: Path, home: Home) -> None:
    with terminal() as shown:
        for question, keys in QUESTIONS.items():
            shown.expect(question)
            shown.press(*keys)
        code = shown.end()
        assert code == NO_JAVA, shown.shown
        assert "claude   Claude Code: 2 sessions, 2026-10-01 to" in shown.shown
        assert "Import their history, about 2 sessions" in shown.shown
        assert "Spark requires Java 17 or 21" in shown.shown
        assert f"put the server's token into {home.root / 'server-token'}" in shown.shown
    assert config(home) == {
        "version": 1,
        "clients": {"claude": {"enabled": True}, "codex": {"enabled": True}},
        "retention": {"default_days": 17},
        "sinks": {
            "team": {
                "kind": "forward",
                "url": "https://hyp.example",
                "token_file": str(home.root / "server-token"),
            }
        },
    }
    assert "ANTHROPIC_BASE_URL" not in (user / ".claude/settings.json").read_text()


def test_clients_are_not_attached_unless_the_user_asks_for_it(user: Path, home: Home) -> None:
    home.root.mkdir(mode=0o700)
    home.config.write_text('version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n')
    with terminal() as shown:
        for question in (
            "Which clients",
            "Where do you want",
            "How long",
            "Import their history",
            "Record new sessions",
        ):
            shown.expect(question)
            shown.press(ENTER)
        shown.expect("the exact usage of answers that were cut off")
        shown.expect("Send claude, codex through the gateway?")
        shown.press(ENTER)
        assert shown.end() == NO_JAVA, shown.shown
        assert "claude: not asked for; its settings stay as they are" in shown.shown
        assert "follows claude, codex" in shown.shown
    assert "ANTHROPIC_BASE_URL" not in (user / ".claude/settings.json").read_text()
    assert lifecycle.stop_daemon(home, force=True)


def test_quitting_at_any_question_changes_nothing(user: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    for last in range(len(QUESTIONS)):
        with terminal() as shown:
            for number, (question, keys) in enumerate(QUESTIONS.items()):
                shown.expect(question)
                if number == last:
                    shown.press((CTRL_C, ESCAPE)[number % 2])
                    break
                shown.press(*keys)
            assert shown.end() == 130, shown.shown
            assert "cancelled" in shown.shown
        assert tree(tmp_path) == before, f"left at question {last + 1}"


def test_without_a_client_the_daemon_starts_only_if_the_user_agrees(user: Path, home: Home) -> None:
    with terminal() as shown:
        for question, keys in (
            ("Which clients", (SPACE, DOWN, SPACE, ENTER)),
            ("Where do you want to deliver rows?", (ENTER,)),
            ("How long", (ENTER,)),
            ("Start the daemon anyway?", (ENTER,)),
        ):
            shown.expect(question)
            shown.press(*keys)
        assert shown.end() == NO_JAVA, shown.shown
        assert "daemon  declined" in shown.shown
    assert not any(each["enabled"] for each in config(home)["clients"].values())


def test_the_end_of_the_input_quits(user: Path, home: Home) -> None:
    with terminal() as shown:
        for question, keys in list(QUESTIONS.items())[:2]:
            shown.expect(question)
            shown.press(*keys)
        shown.expect("What is the server's address?")
        shown.press(ENTER)
        shown.expect("an address, such as https://host.example")
        shown.press("no address", ENTER)
        shown.expect("not a server address")
        shown.press(CTRL_U, CTRL_D)
        assert shown.end() == 130, shown.shown
    assert not home.root.exists()


@pytest.mark.parametrize("key", ["n", ESCAPE], ids=["declined", "cancelled"])
def test_history_is_not_imported_without_consent(user: Path, home: Home, key: str) -> None:
    with terminal(HYP_DEV_TELEMETRY="1", DEV_RUN_ID="walk") as shown:
        for question in ("Which clients", "Where do you want to deliver rows?", "How long"):
            shown.expect(question)
            shown.press(ENTER)
        shown.expect("Import their history")
        shown.press(key)
        if key == "n":
            shown.expect("Record new sessions while they happen?")
            shown.press("n")
        assert shown.end() == (NO_JAVA if key == "n" else 130)
    assert home.config.exists() == (key == "n")
    # The daemon imports transcripts automatically, so the config must exclude the declined history.
    bounds = [each.history_from for each in configuration.load(home).clients.values()]
    assert [bound > "2026-11-15" for bound in bounds] == ([True, True] if key == "n" else [])
    assert not home.catalog.exists()
    spans = [json.loads(line) for path in home.telemetry.glob("traces-*") for line in path.read_text().splitlines()]
    (about,) = [span["attributes"] for span in spans if span["name"] == "walkthrough.backfill"]
    assert (about["providers"], about["interactive"], about["consent"], about["dev_run_id"]) == (
        "claude,codex",
        True,
        False,
        "walk",
    )
    assert about["consent_cancelled"] == (key == ESCAPE)
    assert about["status"] == ("skipped" if key == "n" else "cancelled")
    assert (about["providers_run"], about["rows_written"]) == (0, 0)


def test_a_second_walkthrough_keeps_the_config_and_asks_before_changing_it(user: Path, home: Home) -> None:
    home.root.mkdir(mode=0o700)
    own = (
        "# mine\nretention.default_days = 45\n[clients]\n"
        "claude.enabled = true\nclaude.history_from = 2026-11-01\n"
        "codex.enabled = true\ncodex.history_from = 2026-11-01\n"
    )
    home.config.write_text(own)

    def walk(*clients: str) -> PseudoTerminal:
        shown = terminal()
        shown.expect("It is already set up")
        for question, keys in (
            ("Which clients", clients),
            ("Where do you want to deliver rows?", (ENTER,)),
            ("How long", (ENTER,)),
            ("Import their history", ("n",)),
            ("Record new sessions while they happen?", ("n",)),
        ):
            shown.expect(question)
            shown.press(*keys)
        return shown

    with walk(ENTER) as shown:
        assert shown.end() == NO_JAVA, shown.shown
        assert "is unchanged" in shown.shown
    assert home.config.read_text() == own
    with walk(DOWN, SPACE, ENTER) as shown:
        shown.expect("Change ")
        shown.press("n")
        assert shown.end() == 130, shown.shown
    assert home.config.read_text() == own
    with walk(DOWN, SPACE, ENTER) as shown:
        shown.expect("A backup copy is kept.")
        shown.press("y")
        assert shown.end() == NO_JAVA, shown.shown
    assert home.config.read_text() == own.replace("codex.enabled = true", "codex.enabled = false")
    (copy,) = home.root.glob("config.toml.bak-*")
    assert copy.read_text() == own
