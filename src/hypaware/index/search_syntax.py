"""The words of a search: words that are all required, "phrases" and prefixes (`word*`).

A word with punctuation, such as `src/foo_bar.py`, is a phrase of its parts, because the index holds only letters and
digits. Words of the query language of SQLite (AND, NEAR) have no special meaning. A `*` that follows a letter or a
digit at the end of a word asks for a prefix; after other characters it means nothing, as in `src/*`.
"""

from __future__ import annotations

from typing import NamedTuple

from hypaware.errors import UsageError
from hypaware.index.tokens import Tokenizer, separate_characters

MAX_TERMS = 64
_MAX_LENGTH = 4096


class SearchTerm(NamedTuple):
    """One required word, phrase or prefix."""

    text: str
    """The word as written, without quotes and star."""
    tokens: tuple[str, ...]
    is_prefix: bool = False

    @property
    def expression(self) -> str:
        """The term in the query language of FTS5."""
        quoted = separate_characters(self.text).replace('"', " ").replace("\0", " ")
        return f'"{quoted}"{" *" if self.is_prefix else ""}'


class SearchWords(NamedTuple):
    terms: tuple[SearchTerm, ...]
    ignored: tuple[str, ...] = ()
    """Words without a letter or a digit, which the index does not hold."""

    @property
    def all_of(self) -> str:
        return " AND ".join(term.expression for term in self.terms)

    @property
    def any_of(self) -> str:
        return " OR ".join(term.expression for term in self.terms)

    @property
    def has_prefix(self) -> bool:
        return any(term.is_prefix for term in self.terms)


def parse_words(text: str) -> SearchWords:
    """Parse what the user searches for. Raise UsageError that says where it cannot be read."""
    if len(text) > _MAX_LENGTH:
        raise _refuse(f"the words are longer than {_MAX_LENGTH:,} characters")
    text = text.encode("utf-8", "replace").decode("utf-8")
    tokenizer = Tokenizer()
    try:
        found = [
            SearchTerm(written, tuple(tokenizer.split(written)), starred and bool(tokenizer.split(written[-1])))
            for written, starred in _split_terms(text)
        ]
    finally:
        tokenizer.close()
    terms = tuple({(term.tokens, term.is_prefix): term for term in found if term.tokens}.values())
    ignored = tuple(term.text for term in found if not term.tokens)
    if not found:
        raise _refuse("there is no word to search for")
    if not terms:
        raise _refuse(
            f"{' '.join(ignored)!r} has no letter and no digit: the index holds words, not punctuation or emoji"
        )
    if len(terms) > MAX_TERMS:
        raise _refuse(f"there are more than {MAX_TERMS} words; quote them if they are one phrase")
    return SearchWords(terms, ignored)


def _split_terms(text: str) -> list[tuple[str, bool]]:
    """Return the words and phrases, each with whether a star follows it."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        begin = at
        if text[at] == '"':
            end = text.find('"', at + 1)
            if end < 0:
                raise _refuse(f"the quote at character {at + 1} is not closed: {_show_place(text, at)}")
            written, at = text[at + 1 : end], end + 1
            if not written.strip():
                raise _refuse(f"the phrase at character {begin + 1} is empty: {_show_place(text, begin)}")
        else:
            while at < len(text) and not text[at].isspace() and text[at] not in '"*':
                at += 1
            written = text[begin:at]
        starred = text[at : at + 1] == "*"
        if starred:
            if not written or not _ends_word(text, at + 1):
                raise _refuse(
                    f"the * at character {at + 1} is not at the end of a word, where it means a prefix; put the word "
                    f'in "quotes" to search for it as it is: {_show_place(text, at)}'
                )
            at += 1
        found.append((written, starred))
    return found


def _ends_word(text: str, at: int) -> bool:
    return at == len(text) or text[at].isspace() or text[at] == '"'


def _show_place(text: str, at: int) -> str:
    """Return the text around a position, with a mark before it."""
    begin, end = max(0, at - 20), at + 20
    return f"{'…' if begin else ''}{text[begin:at]} ▸ {text[at:end]}{'…' if end < len(text) else ''}".strip()


def _refuse(reason: str) -> UsageError:
    return UsageError(f"cannot search: {reason}", kind="search_syntax")
