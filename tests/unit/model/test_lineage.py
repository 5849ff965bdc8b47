"""Finding the message before a message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypaware.model.message_ids import Lineage

_ids = st.sampled_from("abcdef")


def test_without_links_a_message_follows_the_one_before_it() -> None:
    lineage = Lineage(None)
    assert [lineage.add(each, "ignored") for each in "abc"] == [None, "a", "b"]


def test_links_lead_through_lines_that_make_no_rows() -> None:
    lineage = Lineage({"x": "a", "y": "x", "z": None})
    assert lineage.add("a", None) is None
    assert lineage.add("b", "y") == "a"
    assert lineage.add("c", "z") is None
    assert lineage.add("d", "a") == "a"


def test_an_id_without_a_link_is_a_later_message() -> None:
    lineage = Lineage({"x": "later"})
    assert lineage.add("a", "x") == "later"
    assert lineage.add("later", None) is None


def test_a_cycle_of_links_leads_to_no_message() -> None:
    lineage = Lineage({"x": "y", "y": "x", "self": "self"})
    assert lineage.add("a", "x") is None
    assert lineage.add("b", "self") is None
    assert lineage.add("c", "c") is None


@given(st.dictionaries(_ids, _ids | st.none()), st.lists(st.tuples(_ids, _ids | st.none()), unique_by=lambda m: m[0]))
def test_a_cached_search_gives_the_same_result(
    links: dict[str, str | None], messages: list[tuple[str, str | None]]
) -> None:
    """If no message is a link of another, a cached search stays valid."""
    links = {name: parent for name, parent in links.items() if name not in dict(messages)}

    def walked(start: str | None) -> str | None:
        seen = set()
        while start in links and start not in seen:
            seen.add(start)
            start = links[start]
        return None if start in seen else start

    lineage = Lineage(links)
    for name, parent in messages:
        expected = walked(parent)
        assert lineage.add(name, parent) == (expected if expected != name else None)
