"""Reversible edits of a text: each records its position, the removed text and the inserted text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Splice(NamedTuple):
    at: int
    """Offset in the text that the edit applies to."""
    removed: str
    inserted: str

    def apply(self, text: str) -> str:
        return text[: self.at] + self.inserted + text[self.at + len(self.removed) :]


class NotThere(ValueError):
    """The text is not the result of the edits."""


def apply(text: str, splices: Sequence[Splice]) -> str:
    """Apply the edits in order, each to the result of the one before it."""
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
    """Return the edit that turns `before` into `after`."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[len(before) - 1 - end] == after[len(after) - 1 - end]:
        end += 1
    return Splice(start, before[start : len(before) - end], after[start : len(after) - end])
