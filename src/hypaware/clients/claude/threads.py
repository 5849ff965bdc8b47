"""Threads of a transcript: each line's parentUuid, or logicalParentUuid across a compaction.

A line belongs to its parent's thread; a line without a parent starts a thread. Lines that make no rows are links
between a message and the previous one.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

from hypaware.clients.claude.line import text_of


class Threads:
    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        """uuid → parent uuid, for all lines; without cycles after `close`."""
        self._roots: dict[str, str] = {}
        self._unseen_parents: set[str] = set()
        """Parents that had not been read when a child named them."""

    def add(self, value: dict[str, Any]) -> str | None:
        """Add a line, and return the root of its thread."""
        uuid, parent = text_of(value.get("uuid")), parent_of(value)
        root = uuid
        if parent is not None:
            parent = sys.intern(parent)
            root = self._roots.get(parent)
            if root is None:
                root = parent
                self._unseen_parents.add(parent)
        if uuid is not None and uuid not in self.parents:
            uuid = sys.intern(uuid)
            self.parents[uuid] = parent
            self._roots[uuid] = root or uuid
        return root

    def close(self, messages: Container[str]) -> dict[str, str | None]:
        """Finish after the last line, and return the links from messages to previous messages."""
        missing = {parent for parent in self._unseen_parents if parent not in self.parents}
        if len(missing) < len(self._unseen_parents):
            self._break_cycles()
        self._roots.clear()
        links = {uuid: parent for uuid, parent in self.parents.items() if uuid not in messages}
        return links | dict.fromkeys(missing)

    def _break_cycles(self) -> None:
        """Remove the parent of one line per cycle. Only a parent that follows its child can form one."""
        walk_of: dict[str, int] = {}
        for number, start in enumerate(self.parents):
            current: str | None = start
            while current is not None and current not in walk_of:
                walk_of[current] = number
                current = self.parents.get(current)
            if current is not None and walk_of[current] == number:
                self.parents[current] = None


def parent_of(value: dict[str, Any]) -> str | None:
    return text_of(value.get("parentUuid")) or text_of(value.get("logicalParentUuid"))
