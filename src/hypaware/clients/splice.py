"""Edits of a text that can be taken back exactly: what was put where, and what it took the place of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Splice(NamedTuple):
    at: int
    """In the text that the edit was made in."""
    removed: str
    inserted: str

    def apply(self, text: str) -> str:
        return text[: self.at] + self.inserted + text[self.at + len(self.removed) :]


class NotThere(ValueError):
    """The text is not the one that the edits have made."""


def apply(text: str, splices: Sequence[Splice]) -> str:
    """One after the other, each in what the one before it left."""
    for splice in splices:
        text = splice.apply(text)
    return text


def undo(text: str, splices: Sequence[Splice]) -> str:
    for splice in reversed(splices):
        end = splice.at + len(splice.inserted)
        if text[splice.at : end] != splice.inserted:
            raise NotThere
        text = text[: splice.at] + splice.removed + text[end:]
    return text


def between(before: str, after: str) -> Splice:
    """The one edit that makes the second of the first."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[len(before) - 1 - end] == after[len(after) - 1 - end]:
        end += 1
    return Splice(start, before[start : len(before) - end], after[start : len(after) - end])
