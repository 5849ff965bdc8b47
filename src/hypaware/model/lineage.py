"""Which message stood before a message: along the links of its client, or simply the one before.

Links lead on through lines that make no rows, to a message: one that was seen already, or an id that the links do not
know. A walk over them is remembered, so that each link is followed about once; one that comes back to itself leads
nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping


class Lineage:
    def __init__(self, links: Mapping[str, str | None] | None) -> None:
        self._links = links
        self._made: set[str] = set()
        self._found: dict[str, str | None] = {}
        self._last: str | None = None

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._made

    def add(self, message_id: str, parent: str | None) -> str | None:
        """Notes a message whose link leads to `parent`; the id of the one before it."""
        before = self._last if self._links is None else self._nearest(parent, self._links)
        self._made.add(message_id)
        self._last = message_id
        return before if before != message_id else None

    def _nearest(self, parent: str | None, links: Mapping[str, str | None]) -> str | None:
        if parent is None or parent in self._made:
            return parent
        walked: dict[str, None] = {}
        here: str | None = parent
        while isinstance(here, str) and here in links and here not in self._made:
            if here in walked:
                here = None
            elif here in self._found:
                here = self._found[here]
                break
            else:
                walked[here] = None
                here = links[here]
        nearest = here if isinstance(here, str) else None
        self._found.update(dict.fromkeys(walked, nearest))
        return nearest
