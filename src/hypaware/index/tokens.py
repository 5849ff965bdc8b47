"""How text becomes the words of the full-text index. Indexed text and search words both pass through here.

SQLite's tokenizer takes a run of letters and digits as one word; upper and lower case and accents do not matter, and
everything else separates words. Chinese, Japanese and Korean are written without spaces, or with particles that belong
to the word before them: `separate_characters` makes each of their characters a word, so that any part of a sentence is
found as a phrase. The arguments of a tool call are JSON, in which `\\n` is not the letter n: escapes separate words.
Text must be prepared in the same way when it is removed from the index.

The role, the type and the tool of a part are words too (`kind_words`), so that SQLite itself looks for the parts of one
kind. They begin with a character that is nowhere else in the index, so no text can be taken for them.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

TOKENIZER = "unicode61"
SEPARATOR = "\x1f"
_KIND = "\uf8fc"
"""A private character, which the tokenizer takes as a letter."""
KINDS = ("role", "type", "tool")
# Compiled when it is needed: most texts are plain ASCII, and it takes milliseconds.
_CHARACTER = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9d"
    "\U0001b000-\U0001b16f\U00020000-\U0003fffd]"
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


def prepare_text(text: str | None, tool_args: str | None) -> str | None:
    """Return what the full-text table holds of a part: its text and the arguments (JSON) of its tool call."""
    if tool_args is not None:
        arguments = _ESCAPE.sub(" ", tool_args) if "\\" in tool_args else tool_args
        text = f"{text}\n{arguments}" if text else arguments
    return None if text is None else separate_characters(text)


def separate_characters(text: str) -> str:
    """Put separators around each Chinese, Japanese and Korean character."""
    return text if text.isascii() else re.sub(_CHARACTER, rf"{SEPARATOR}\g<0>{SEPARATOR}", text.replace(_KIND, " "))


def kind_word(kind: str, name: int) -> str:
    """Return the word of the parts whose role, type or tool is the name with this id."""
    return f"{_KIND}{kind}{name}"


@lru_cache(maxsize=4096)
def kind_words(role: int | None, part_type: int | None, tool: int | None) -> str:
    """Return the words that stand before the text of a part in the full-text table."""
    words = f"{_KIND}role{role} {_KIND}type{part_type} "
    return words if tool is None else f"{words}{_KIND}tool{tool} "


class Tokenizer:
    """Splits text with SQLite's own tokenizer, so that the result is what the index holds."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute(f"CREATE VIRTUAL TABLE sample USING fts5(text, tokenize='{TOKENIZER}')")
        self._database.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(sample, instance)")

    def split(self, text: str) -> list[str]:
        """Return the words of a text in their order, in the form in which they are compared."""
        self._database.execute("INSERT INTO sample VALUES (?)", (_without_surrogates(separate_characters(text)),))
        found = self._database.execute("SELECT term FROM tokens ORDER BY offset").fetchall()
        self._database.execute("DELETE FROM sample")
        return [term for (term,) in found]

    def close(self) -> None:
        self._database.close()


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
