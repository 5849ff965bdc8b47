"""The words of a search: what they mean, and where they cannot be read."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.errors import UsageError
from hypaware.index.search_syntax import MAX_TERMS, parse_words
from hypaware.index.tokens import TOKENIZER, Tokenizer, prepare_text

PIECES = st.sampled_from(
    ["foo", "bar", '"', "*", " ", "-", "(", ")", "AND", "OR", "NOT", "NEAR", ":", "^", "+", "{", "}", "'", "\\", "\0"]
)


def tokens_of(text: str) -> list[tuple[tuple[str, ...], bool]]:
    return [(term.tokens, term.is_prefix) for term in parse_words(text).terms]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deploy failed", [(("deploy",), False), (("failed",), False)]),
        ('"deploy failed" now', [(("deploy", "failed"), False), (("now",), False)]),
        ("dep*", [(("dep",), True)]),
        ('"git comm"*', [(("git", "comm"), True)]),
        ("src/foo_bar.py", [(("src", "foo", "bar", "py"), False)]),
        ("--no-verify", [(("no", "verify"), False)]),
        ("user@host", [(("user", "host"), False)]),
        ("C++", [(("c",), False)]),
        ("Zürich", [(("zurich",), False)]),
        ("世界", [(("世", "界"), False)]),
        ("src/*", [(("src",), False)]),
        ("a AND b OR c", [(("a",), False), (("and",), False), (("b",), False), (("or",), False), (("c",), False)]),
        ("NEAR(x, 3)", [(("near", "x"), False), (("3",), False)]),
        ("title:foo", [(("title", "foo"), False)]),
        ("same same", [(("same",), False)]),
        ('he"llo"', [(("he",), False), (("llo",), False)]),
        ('"*args"', [(("args",), False)]),
    ],
)
def test_words_phrases_and_prefixes(text: str, expected: list[tuple[tuple[str, ...], bool]]) -> None:
    assert tokens_of(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('foo "bar baz', "the quote at character 5 is not closed"),
        ('5"', "the quote at character 2 is not closed"),
        ("*", "the * at character 1"),
        ("foo *", "the * at character 5"),
        ("*tion", "the * at character 1"),
        ("fo*o", "the * at character 3"),
        ("foo**", "the * at character 4"),
        ('foo ""', "the phrase at character 5 is empty"),
        ("", "there is no word"),
        ("  \t\n", "there is no word"),
        ("🎉", "has no letter and no digit"),
        ("-- !!", "has no letter and no digit"),
        ("x" * 5000, "longer than"),
        (" ".join(f"w{n}" for n in range(MAX_TERMS + 1)), "more than"),
    ],
)
def test_a_syntax_error_names_its_position(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_words(text)

    assert reason in refused.value.message
    assert (refused.value.kind, refused.value.exit_code) == ("search_syntax", 2)


def test_punctuation_between_words_is_ignored_and_named() -> None:
    words = parse_words("deploy && failed 🎉")

    assert [term.text for term in words.terms] == ["deploy", "failed"]
    assert words.ignored == ("&&", "🎉")


@given(st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=40)))
def test_no_text_is_an_error_of_sqlite(text: str) -> None:
    try:
        words = parse_words(text)
    except UsageError:
        return
    database = sqlite3.connect(":memory:")
    try:
        database.execute(f"CREATE VIRTUAL TABLE t USING fts5(text, tokenize='{TOKENIZER}')")
        database.execute("INSERT INTO t VALUES ('foo bar')")
        for expression in (words.all_of, words.any_of, *(term.expression for term in words.terms)):
            database.execute("SELECT count(*) FROM t WHERE t MATCH ?", (expression,)).fetchone()
    finally:
        database.close()


@given(st.text(min_size=1, max_size=60))
def test_a_text_finds_itself_as_a_phrase(text: str) -> None:
    try:
        words = parse_words('"' + text.replace('"', " ") + '"')
    except UsageError:
        return
    stored = prepare_text(text.encode("utf-8", "replace").decode(), None)
    database = sqlite3.connect(":memory:")
    try:
        database.execute(f"CREATE VIRTUAL TABLE t USING fts5(text, content='', tokenize='{TOKENIZER}')")
        database.execute("INSERT INTO t (rowid, text) VALUES (7, ?)", (stored,))
        assert database.execute("SELECT rowid FROM t WHERE t MATCH ?", (words.all_of,)).fetchall() == [(7,)]
    finally:
        database.close()


@pytest.mark.parametrize(
    ("tool_args", "expected"),
    [
        ('{"command":"ls\\nreturn"}', ["command", "ls", "return"]),
        ('{"path":"C:\\\\new\\\\table"}', ["path", "c", "new", "table"]),
        ('{"q":"say \\"hi\\"\\u0007there"}', ["q", "say", "hi", "there"]),
        ("not JSON \\", ["not", "json"]),
    ],
)
def test_escapes_of_json_separate_words(tool_args: str, expected: list[str]) -> None:
    tokenizer = Tokenizer()
    try:
        assert tokenizer.split(prepare_text(None, tool_args) or "") == expected
        assert tokenizer.split(prepare_text("before", tool_args) or "") == ["before", *expected]
    finally:
        tokenizer.close()
