"""People and machines on the page of a server: names, figures, and views of one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from hypaware.home import Home
from hypaware.index.filters import Filters
from hypaware.index.prices import load_prices
from hypaware.index.sessions import list_sessions
from hypaware.index.store import open_index
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.machines import OwnerFigures, sum_people
from hypaware.state.machines import MachineNames, read_machines
from tests.support.index_home import make_home, prompt
from tests.support.served_page import ServedPage, serve_app
from tests.support.team_page import ALICE, BOB, SEEN, WITHHELD, make_team_home, served_team_page


@pytest.fixture
def browser(home: Home) -> Iterator[ServedPage]:
    with served_team_page(make_team_home(home)) as page:
        yield page.signed_in("viewer")


def test_machines_have_the_names_and_people_that_the_server_knows(home: Home) -> None:
    names = read_machines(make_team_home(home))
    assert (names.name_of(ALICE), names.person_of(ALICE)) == (f"{ALICE}.local", "alice")
    assert names.machines_of("bob") == {BOB}
    assert names.machines_of("nobody") == frozenset()
    assert names.list_people() == ["alice", "bob"]
    assert (names.name_of("gw-unknown"), names.person_of("gw-unknown")) == ("gw-unknown", None)


def test_machines_with_the_same_host_name_are_distinguished() -> None:
    names = MachineNames({"gw-1": "mac", "gw-2": "mac", "gw-3": "pc"})
    assert [names.name_of(each) for each in ("gw-1", "gw-2", "gw-3")] == ["mac (gw-1)", "mac (gw-2)", "pc"]


def test_people_and_machines_are_listed_with_their_figures(browser: ServedPage) -> None:
    text = browser.ask("/machines?days=all").text
    for name in ("alice", "bob", f"{ALICE}.local", f"{BOB}.local"):
        assert f">{name}</a>" in text
    assert re.search(r"<dt>Sessions</dt><dd><a [^>]*>3</a>", text)
    assert f"/sessions?machine={ALICE}&amp;days=all" in text or f"/sessions?days=all&amp;machine={ALICE}" in text


def test_a_person_has_all_sessions_of_their_machines(home: Home) -> None:
    make_team_home(home)
    with open_index(home) as index:

        def listed(**filters: str) -> set[str]:
            return {row["session_id"] for row in list_sessions(index, Filters(**filters), load_prices(home))}  # type: ignore[arg-type]

        assert listed(person="alice") == {SEEN, WITHHELD}
        assert listed(person="bob") == {"bob-session"}
        assert listed(person="bob", machine=ALICE) == set()
        assert listed(person="nobody") == set()


@pytest.mark.parametrize("view", ["/sessions", "/search", "/machines", "/"])
def test_the_filter_of_a_person_works_in_every_view(browser: ServedPage, view: str) -> None:
    alice = browser.ask(f"{view}?days=all&q=shop&person=alice")
    bob = browser.ask(f"{view}?days=all&q=shop&person=bob")
    assert (alice.status, bob.status) == (200, 200)
    shown = {"/machines": (f">{ALICE}.local</a>", f">{BOB}.local</a>")}.get(view, (SEEN, "bob-session"))
    assert [text in alice.text for text in shown] == [True, False]
    assert [text in bob.text for text in shown] == [False, True]
    assert 'aria-label="Remove the filter person"' in alice.text


def test_a_person_and_a_machine_can_be_chosen(browser: ServedPage) -> None:
    text = browser.ask(f"/sessions?days=all&machine={ALICE}").text
    assert f'<option value="{ALICE}" selected>{ALICE}.local (2)</option>' in text
    assert '<option value="alice">alice (2)</option>' in text
    assert f'<span class="cut">{ALICE}.local</span>' in text


def test_a_session_says_on_which_machine_it_can_be_resumed(browser: ServedPage) -> None:
    text = browser.ask(f"/sessions/{SEEN}").text
    assert f"on {ALICE}.local" in text
    # Whoever typed is not the person who looks.
    assert re.search(r'class="speaker you"[^>]*>alice ', text)
    assert not re.search(r'class="speaker you"[^>]*>You ', text)


def test_a_home_that_receives_nothing_has_one_machine_and_no_people(home: Home) -> None:
    make_home(home.root, prompt(1, "Why?", at="2026-11-15T08:00:00Z"))
    with closing(PageContext(home)) as context, serve_app(lambda: make_app(context)) as page:
        text = page.ask("/machines?days=all").text
        overview = page.ask("/").text
    assert '<h2 id="machines">' in text
    assert '<h2 id="people">' not in text
    assert "/machines" not in overview
    assert "Sign out" not in overview


def test_nothing_in_the_window_offers_all_time(browser: ServedPage) -> None:
    text = browser.ask("/machines?since=2020-01-01&until=2020-01-02").text
    assert "No machine was active" in text


def test_costs_of_a_person_are_added_and_unknown_ones_named() -> None:
    found = sum_people(
        [
            OwnerFigures("a", "a", "alice", 1, 2, 10, 1.5, [], "2026-11-15T08:00:00Z"),
            OwnerFigures("b", "b", "alice", 1, 1, 5, None, ["odd"], "2026-11-16T08:00:00Z"),
            OwnerFigures("c", "c", None, 1, 1, 5, 9.0),
        ]
    )
    (alice,) = found
    assert (alice.machines, alice.sessions, alice.tokens, alice.cost_usd) == (2, 3, 15, 1.5)
    assert (alice.unpriced_models, alice.last_seen_at) == (["odd"], "2026-11-16T08:00:00Z")
