"""What a mistyped name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def nearest(name: str, known: Mapping[str, str] | Iterable[str], and_all: bool = False) -> str:
    """Words to put after "there is no …": the nearest known name, else (or as well: `and_all`) all of them.

    A mapping gives for each name, as it is to be shown, the part of it that is compared.
    """
    from difflib import SequenceMatcher

    compared = known if isinstance(known, Mapping) else {each: each for each in known}
    if not compared:
        return ""
    likeness = {each: SequenceMatcher(None, name, part).ratio() for each, part in compared.items()}
    best = max(likeness, key=lambda each: likeness[each])
    guess = f" Did you mean {best}?" if likeness[best] >= 0.5 else ""
    return f"{guess} Known: {', '.join(compared)}." if and_all or not guess else guess
