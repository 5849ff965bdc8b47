"""Lists of sessions: order, title, ids; and the session that a prefix means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError
from hypaware.index.filters import Filters
from hypaware.index.prices import read_prices
from hypaware.index.prompts import clean_title
from hypaware.index.sessions import (
    find_last_session,
    find_session,
    list_sessions,
    session_document,
    shorten_ids,
)
from hypaware.index.store import Index
from hypaware.state.home_opener import open_home
from hypaware.state.titles import SessionTitle, write_titles
from tests.support.index_home import OPUS, SONNET, index_of, make_home, prompt, response

PRICES = read_prices()
FIRST, SECOND, THIRD = "0dc91b82-aaaa-4907", "0dc91b82-bbbb-4907", "7f7951bf-398c-4472"


def sample(root: Path) -> Index:
    return index_of(
        root,
        prompt(1, "Add a cart.", at="2026-11-14T08:00:00Z", session_id=FIRST),
        response(2, at="2026-11-14T08:01:00Z", session_id=FIRST, usage={"output_tokens": 900_000}, model=SONNET),
        response(3, at="2026-11-14T08:02:00Z", session_id=FIRST),
        response(4, at="2026-11-15T08:00:00Z", session_id=SECOND, usage={"cache_read_tokens": 2_000_000}),
        response(5, at="2026-11-13T08:00:00Z", session_id=THIRD, usage={"output_tokens": 1_000_000}, model="new"),
    )


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [each["session_id"] for each in found]


def test_a_session_has_the_documented_fields(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        found = list_sessions(index, Filters(), PRICES)

    machine = open_home(make_home(tmp_path)).gateway_id
    assert found[1] == {
        "session_id": FIRST,
        "client": "claude",
        "machine": machine,
        "project": "web",
        "cwd": "/home/dev/web",
        "branch": None,
        "models": [SONNET, OPUS],
        "title": "Add a cart.",
        "started_at": "2026-11-14T08:00:00Z",
        "ended_at": "2026-11-14T08:02:00Z",
        "turns": 1,
        "messages": 3,
        "parts": 3,
        "tool_calls": 0,
        "errors": 0,
        "tokens": {"input": 0, "output": 900_000, "cache_read": 0, "cache_write": 0, "reasoning": 0},
        "cost_usd": 13.5,
        "unpriced_models": [],
    }
    assert (found[2]["cost_usd"], found[2]["unpriced_models"], found[2]["title"]) == (None, ["new"], None)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("time", [SECOND, FIRST, THIRD]),
        ("cost", [FIRST, SECOND, THIRD]),
        ("tokens", [SECOND, THIRD, FIRST]),
        ("length", [FIRST, SECOND, THIRD]),
    ],
)
def test_sessions_are_sorted_by_time_cost_tokens_or_length(tmp_path: Path, sort: str, expected: list[str]) -> None:
    with sample(tmp_path) as index:
        assert ids(list_sessions(index, Filters(), PRICES, sort=sort)) == expected
        assert ids(list_sessions(index, Filters(), PRICES, sort=sort, limit=2)) == expected[:2]


def test_only_sessions_with_errors_are_listed(tmp_path: Path) -> None:
    failed = response(1, at="2026-11-14T08:00:00Z", part_type="tool_result", is_error=True, session_id=FIRST)
    with index_of(tmp_path, failed, response(2, at="2026-11-14T08:00:00Z", session_id=SECOND)) as index:
        assert ids(list_sessions(index, Filters(), PRICES, errors=True)) == [FIRST]


def test_only_the_given_sessions_are_listed(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        assert ids(list_sessions(index, Filters(), PRICES, among=[find_session(index, SECOND)])) == [SECOND]
        assert list_sessions(index, Filters(), PRICES, among=[]) == []


def test_the_clients_own_title_is_preferred_to_the_first_prompt(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        opened = open_home(index.home)
        with opened.store.transaction() as connection:
            write_titles(
                connection, "claude", [SessionTitle("client", "A cart for the shop", FIRST, "2026-11-14T08:02:00Z")]
            )
        opened.store.close()

        titles = {each["session_id"]: each["title"] for each in list_sessions(index, Filters(), PRICES)}

    assert titles == {FIRST: "A cart for the shop", SECOND: None, THIRD: None}


def test_a_unique_prefix_is_enough(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        for given, expected in (("7", THIRD), ("0dc91b82-b", SECOND), (FIRST, FIRST)):
            assert session_document(index, find_session(index, given), PRICES)["session_id"] == expected


def test_a_whole_id_that_is_the_beginning_of_another_is_not_ambiguous(tmp_path: Path) -> None:
    rows = [response(n, at="2026-11-14T08:00:00Z", session_id=each) for n, each in enumerate(("abc", "abcd"))]
    with index_of(tmp_path, *rows) as index:
        assert session_document(index, find_session(index, "abc"), PRICES)["session_id"] == "abc"


def test_an_ambiguous_prefix_lists_the_matches(tmp_path: Path) -> None:
    with sample(tmp_path) as index, pytest.raises(HypError) as raised:
        find_session(index, "0dc9")

    assert raised.value.kind == "ambiguous_session"
    assert raised.value.message == (f"0dc9 is the start of several sessions:\n  {SECOND}  -\n  {FIRST}  Add a cart.")


@pytest.mark.parametrize(
    ("given", "nearest"), [("7f7951bg", THIRD), ("0dc91b82-aaab", FIRST), ("zzz", THIRD), ("%", THIRD)]
)
def test_an_unknown_id_names_the_nearest(tmp_path: Path, given: str, nearest: str) -> None:
    with sample(tmp_path) as index, pytest.raises(HypError) as raised:
        find_session(index, given)

    assert raised.value.kind == "unknown_session"
    assert nearest in raised.value.message
    assert raised.value.repair == ("hyp sessions",)


def test_an_empty_id_suggests_no_session(tmp_path: Path) -> None:
    with sample(tmp_path) as index, pytest.raises(HypError, match=r"^the given id of a session is empty\.$") as raised:
        find_session(index, "")

    assert raised.value.repair == ("hyp sessions",)


@pytest.mark.parametrize("given", ["", "x"])
def test_without_sessions_every_id_is_unknown(tmp_path: Path, given: str) -> None:
    with index_of(tmp_path) as index:
        with pytest.raises(HypError, match="No session is recorded yet"):
            find_session(index, given)
        with pytest.raises(HypError, match="no session is recorded yet"):
            find_last_session(index)


@pytest.mark.hazard(62)
def test_a_hostile_id_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    hostile = response(1, at="2026-11-14T08:00:00Z", session_id="\x1b]0;evil\x07")
    with index_of(tmp_path, hostile) as index, pytest.raises(HypError) as raised:
        find_session(index, "\x1b[2J")

    assert "\x1b" not in raised.value.message


def test_the_last_session_is_the_newest_that_matches(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        assert find_last_session(index) == find_session(index, SECOND)
        assert find_last_session(index, Filters(model=SONNET)) == find_session(index, FIRST)


def test_an_id_is_shortened_to_the_prefix_that_means_no_other_session(tmp_path: Path) -> None:
    with sample(tmp_path) as index:
        short = shorten_ids(index, [FIRST, SECOND, THIRD])

        assert short == {FIRST: "0dc91b82-a", SECOND: "0dc91b82-b", THIRD: "7f7951bf"}
        for whole, prefix in short.items():
            assert find_session(index, prefix) == find_session(index, whole)


@pytest.mark.parametrize(
    ("prompt_text", "title"),
    [
        ("Add a cart.\n\nIt has   two lines.", "Add a cart. It has two lines."),
        ("<command-message>init is running…</command-message>\n<command-name>/init</command-name>", "/init"),
        (
            "<command-name>/review</command-name>\n<command-message>review</command-message>\n"
            "<command-args>the cart</command-args>",
            "/review the cart",
        ),
        ("<bash-input>git status</bash-input>", "! git status"),
        ("<system-reminder>\nNever mind.\n</system-reminder>\nAdd a cart.", "Add a cart."),
        (
            "Caveat: The messages below were generated by the user while running local commands. Ignore.\nGo on.",
            "Go on.",
        ),
        ("<local-command-caveat>Caveat: x</local-command-caveat>", None),
        ("<environment_context>\n  <cwd>/home/dev</cwd>\n</environment_context>", None),
        ("# AGENTS.md instructions for /home/dev\n\n<INSTRUCTIONS>\nBe kind.\n</INSTRUCTIONS>", None),
        ("<system-reminder>cut off by the limit", None),
        ("Use <div> and a < b", "Use <div> and a < b"),
        (None, None),
        ("  \n", None),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_prompt_becomes_a_title_of_one_line(prompt_text: str | None, title: str | None) -> None:
    assert clean_title(prompt_text) == title
