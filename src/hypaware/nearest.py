"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def nearest(name: str, known: Mapping[str, str] | Iterable[str], and_all: bool = False) -> str:
    """Return a hint to append to "there is no ...": the most similar name, or else the list of known names.

    With `and_all`, the list is always included. A mapping gives, for each name to display, the part to compare.
    """
    from difflib import SequenceMatcher

    candidates = known if isinstance(known, Mapping) else {name: name for name in known}
    if not candidates:
        return ""
    similarity = {each: SequenceMatcher(None, name, part).ratio() for each, part in candidates.items()}
    best = max(similarity, key=lambda each: similarity[each])
    guess = f" Did you mean {best}?" if similarity[best] >= 0.5 else ""
    return f"{guess} Known: {', '.join(candidates)}." if and_all or not guess else guess
