"""Snippets: the place of a text where the words of a search are, in one line, with the words marked.

SQLite chooses the place and marks the words, with the same tokenizer as the index, in a database in memory that holds
only the texts that are shown. Marks are the characters `MARK_BEGIN` and `MARK_END`, which a snippet contains nowhere
else.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing

from hypaware.index.search_syntax import SearchWords
from hypaware.index.tokens import SEPARATOR, TOKENIZER, separate_characters

MARK_BEGIN, MARK_END = "⟦", "⟧"
_BEGIN, _END, _CUT = "\x02", "\x03", "…"
_TOKENS = 40
_LENGTH = 240
_BEFORE = 60
"""Characters before the first mark, if a snippet must be shortened."""
_WHOLE_TEXT = 64 << 10
_PLACES = 8
_AROUND = 2000
_REPLACED = {MARK_BEGIN: "[", MARK_END: "]", _BEGIN: " ", _END: " ", SEPARATOR: " ", "\0": " "}
_ONLY_SPACE = re.compile(f"{_END}(\\s+){_BEGIN}")


def make_snippets(words: SearchWords, texts: Mapping[int, str]) -> dict[int, str]:
    """Return the snippet of each text. A text without any of the words gives its beginning."""
    if not texts:
        return {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE VIRTUAL TABLE shown USING fts5(text, tokenize='{TOKENIZER}')")
        prepared = {key: _prepare(words, text) for key, text in texts.items()}
        database.executemany("INSERT INTO shown (rowid, text) VALUES (?, ?)", prepared.items())
        found = database.execute(
            f"SELECT rowid, snippet(shown, 0, '{_BEGIN}', '{_END}', '{_CUT}', {_TOKENS}) "
            "FROM shown WHERE shown MATCH ?",
            (words.any_of,),
        )
        snippets = dict(found)
    return {key: _finish(snippets.get(key, prepared[key][: 2 * _LENGTH])) for key in texts}


def _prepare(words: SearchWords, text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    # Hardly any text contains these, and to look for them takes less time than to translate each character.
    for character, replacement in _REPLACED.items():
        text = text.replace(character, replacement)
    if len(text) > _WHOLE_TEXT:
        text = _CUT.join(_cut_places(words, text)) or text
    return separate_characters(text)


def _cut_places(words: SearchWords, text: str) -> Iterator[str]:
    """Yield the parts of a long text around the words. Nothing if they are written with other accents."""
    for term in words.terms:
        pattern = re.compile(r"[\W_]+".join(map(re.escape, term.tokens)), re.IGNORECASE)
        end = 0
        for count, found in enumerate(pattern.finditer(text)):
            if found.start() >= end:
                start = _word_start(text, max(0, found.start() - _AROUND), found.start())
                end = found.end() + _AROUND
                yield text[start:end]
            if count >= _PLACES:
                break


def _finish(snippet: str) -> str:
    snippet = " ".join(_ONLY_SPACE.sub(r"\1", snippet.replace(SEPARATOR, "")).split())
    snippet = snippet.replace(_END + _BEGIN, "")
    length = len(snippet) - snippet.count(_BEGIN) - snippet.count(_END)
    if length > _LENGTH:
        snippet = _shorten(snippet)
    return snippet.replace(_BEGIN, MARK_BEGIN).replace(_END, MARK_END)


def _shorten(snippet: str) -> str:
    """Cut a snippet with very long words around its first mark."""
    first = max(0, snippet.find(_BEGIN))
    begin = _word_start(snippet, max(0, first - _BEFORE), first)
    end = begin + _LENGTH
    kept = snippet[begin:end]
    if end < len(snippet):
        if " " in kept[_LENGTH * 3 // 4 :]:
            kept = kept[: kept.rindex(" ")]
        kept += (_END if kept.count(_BEGIN) > kept.count(_END) else "") + _CUT
    return (_CUT if begin else "") + kept


def _word_start(text: str, at: int, limit: int) -> int:
    """Return the start of the first word from `at` on; `at` itself if there is none before `limit`."""
    space = text.find(" ", at, limit) if at else -1
    return space + 1 if space >= 0 else at


def split_marks(snippet: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a snippet without marks, each with whether it was marked."""
    for at, piece in enumerate(re.split(f"[{MARK_BEGIN}{MARK_END}]", snippet)):
        if piece:
            yield piece, at % 2 == 1
