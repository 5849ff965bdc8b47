"""What stands before what in a transcript: parentUuid, and across a compaction logicalParentUuid.

A line follows its parent's thread; a line without one begins a thread. Lines that make no rows are links on the way
from a message to the one before it.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

from hypaware.clients.claude.line import text_of


class Threads:
    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        """uuid → parent, of all lines; without circles once `close` was called."""
        self._roots: dict[str, str] = {}
        self._strangers: set[str] = set()
        """Parents that no line had told of when a child named them."""

    def add(self, value: dict[str, Any]) -> str | None:
        """Notes a line; the root of its thread."""
        uuid, parent = text_of(value.get("uuid")), parent_of(value)
        root = uuid
        if parent is not None:
            parent = sys.intern(parent)
            root = self._roots.get(parent)
            if root is None:
                root = parent
                self._strangers.add(parent)
        if uuid is not None and uuid not in self.parents:
            uuid = sys.intern(uuid)
            self.parents[uuid] = parent
            self._roots[uuid] = root or uuid
        return root

    def close(self, messages: Container[str]) -> dict[str, str | None]:
        """All lines are there: the links that lead from one of the messages to the one before it."""
        missing = {parent for parent in self._strangers if parent not in self.parents}
        if len(missing) < len(self._strangers):
            self._cut_circles()
        self._roots.clear()
        links = {uuid: parent for uuid, parent in self.parents.items() if uuid not in messages}
        return links | dict.fromkeys(missing)

    def _cut_circles(self) -> None:
        """Only a parent that comes after its child can close a circle."""
        walk_of: dict[str, int] = {}
        for number, start in enumerate(self.parents):
            here: str | None = start
            while here is not None and here not in walk_of:
                walk_of[here] = number
                here = self.parents.get(here)
            if here is not None and walk_of[here] == number:
                self.parents[here] = None


def parent_of(value: dict[str, Any]) -> str | None:
    return text_of(value.get("parentUuid")) or text_of(value.get("logicalParentUuid"))
