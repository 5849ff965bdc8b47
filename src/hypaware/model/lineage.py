"""Find the message before a message: along the client's links, or simply the preceding one.

Links lead through transcript lines that make no rows to a message: one that was added before, or an id that the links
do not contain. Searches are cached, so each link is followed about once. A cycle leads to no message.
"""

from __future__ import annotations

from collections.abc import Mapping


class Lineage:
    def __init__(self, links: Mapping[str, str | None] | None) -> None:
        self._links = links
        self._messages: set[str] = set()
        self._cache: dict[str, str | None] = {}
        self._last: str | None = None

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def add(self, message_id: str, parent: str | None) -> str | None:
        """Add a message whose link leads to `parent`, and return the id of the message before it."""
        previous = self._last if self._links is None else self._nearest(parent, self._links)
        self._messages.add(message_id)
        self._last = message_id
        return previous if previous != message_id else None

    def _nearest(self, parent: str | None, links: Mapping[str, str | None]) -> str | None:
        if parent is None or parent in self._messages:
            return parent
        visited: dict[str, None] = {}
        current: str | None = parent
        while isinstance(current, str) and current in links and current not in self._messages:
            if current in visited:
                current = None
            elif current in self._cache:
                current = self._cache[current]
                break
            else:
                visited[current] = None
                current = links[current]
        nearest = current if isinstance(current, str) else None
        self._cache.update(dict.fromkeys(visited, nearest))
        return nearest
