"""How far a row may go: `full` (kept and exported), `local-only` (kept, never exported), `ignore` (never recorded)."""

from __future__ import annotations

from enum import IntEnum


class PrivacyClass(IntEnum):
    """The greater, the stricter."""

    FULL = 0
    LOCAL_ONLY = 1
    IGNORE = 2

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, word: str) -> PrivacyClass:
        """A word that is none of the three means the strictest."""
        return next((each for each in cls if each.word == word.lower()), cls.IGNORE)


WORDS = tuple(each.word for each in PrivacyClass)
