"""Snippets: one line around the words, with the words marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.index.search_syntax import parse_words
from hypaware.index.snippets import MARK_BEGIN, MARK_END, make_snippets, split_marks

LONGEST = 320


def snippet(words: str, text: str) -> str:
    return make_snippets(parse_words(words), {1: text})[1]


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ("fox", "the quick fox", "the quick ⟦fox⟧"),
        ("FOX", "Fox, fox; FOXES", "⟦Fox⟧, ⟦fox⟧; FOXES"),
        ("fo*", "Fox foxes of", "⟦Fox foxes⟧ of"),
        ("quick fox", "the quick fox and a fox", "the ⟦quick fox⟧ and a ⟦fox⟧"),
        ('"quick fox"', "a fox, the quick fox", "a fox, the ⟦quick fox⟧"),
        ("src/foo_bar.py", "see src/foo_bar.py:12", "see ⟦src/foo_bar.py⟧:12"),
        ("zurich", "in Zürich", "in ⟦Zürich⟧"),
        ("世界", "你好世界。", "你好⟦世界⟧。"),
        ("fox", "one\n\ttwo\r\nfox \u2028 three", "one two ⟦fox⟧ three"),
        ("fox", "⟦fox⟧ \x02\x03\x1f\x00", "[⟦fox⟧]"),
        ("wolf", "nothing of the kind", "nothing of the kind"),
        ("fox", "", ""),
    ],
)
def test_the_words_are_marked(words: str, text: str, expected: str) -> None:
    assert snippet(words, text) == expected


def test_a_long_text_is_cut_at_words_around_the_match() -> None:
    text = " ".join(f"before{at}" for at in range(500)) + " the fox " + " ".join(f"after{at}" for at in range(500))

    found = snippet("fox", text)

    assert found.startswith("…before")
    assert found.endswith("…")
    assert " the ⟦fox⟧ after0 " in found
    assert len(found) <= LONGEST


@pytest.mark.parametrize("size", [1_000, 200_000, 2_000_000])
def test_the_best_place_of_a_very_long_text_is_found(size: int) -> None:
    filler = "lorem ipsum dolor " * (size // 18)

    assert "⟦quick brown fox⟧" in snippet('"quick brown fox"', f"{filler}{filler}the quick brown fox {filler}")
    assert "⟦Café⟧" in snippet("cafe", f"{filler} Café {filler}")


def test_words_that_are_far_apart_show_one_of_them() -> None:
    found = snippet("fox wolf", "a fox here " + "x " * 100_000 + " a wolf there")

    assert "⟦fox⟧" in found or "⟦wolf⟧" in found


def test_one_endless_word_is_cut_too() -> None:
    found = snippet("fox", "A" * 100_000 + " fox " + "B" * 100_000)

    assert "⟦fox⟧" in found
    assert len(found) <= LONGEST


def test_a_marked_word_of_any_length_is_closed() -> None:
    found = snippet(f"{'a' * 10}*", "a" * 5_000)

    assert found.count(MARK_BEGIN) == found.count(MARK_END) == 1
    assert len(found) <= LONGEST


@given(st.text(max_size=300), st.sampled_from(["fox", "a", "0*", '"a b"']))
def test_any_text_gives_one_short_line_with_matching_marks(text: str, words: str) -> None:
    found = snippet(words, f"{text} fox a b 0")

    assert len(found) <= LONGEST
    assert found == " ".join(found.split())
    depth = 0
    for char in found:
        depth += (char == MARK_BEGIN) - (char == MARK_END)
        assert depth in (0, 1)
    assert depth == 0
    assert any(is_marked for _, is_marked in split_marks(found))
    assert "".join(piece for piece, _ in split_marks(found)) == found.replace(MARK_BEGIN, "").replace(MARK_END, "")
