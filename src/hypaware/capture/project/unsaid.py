"""Items of the Responses dialect that make no row, as an import of the client's rollout makes none of them.

They are counted under the import's reasons, each once: a request shows again what earlier exchanges brought. An item is
known by its id; one without by what it holds, and how many like it stand before it in the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypaware.capture.project.turn import Unsaid
from hypaware.capture.project.values import digest, written
from hypaware.clients.codex import items

# They point at what was said before, or hold nothing that could be read.
_NOTHING_NEW = ("item_reference", "reasoning")
_CHANGING = ("id", "status")


class UnsaidItems:
    """Of one exchange: first what its request shows, then its answer."""

    def __init__(self) -> None:
        self._alike: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def shown(self, given: Iterable[items.Payload]) -> list[Unsaid]:
        found = ((item, self._reason(item)) for item in given)
        return [Unsaid(reason, (_id_of(item) or self._content_of(item),)) for item, reason in found if reason]

    def answered(self, given: Iterable[items.Payload]) -> list[Unsaid]:
        """Under both names: not every client shows the ids that it was given."""
        found = ((item, self._reason(item)) for item in given)
        names = ((reason, self._content_of(item), _id_of(item)) for item, reason in found if reason)
        return [Unsaid(reason, (content, *([own_id] if own_id else ()))) for reason, content, own_id in names]

    def _reason(self, item: items.Payload) -> str | None:
        """None for what makes a row, and for what nobody misses."""
        kind: Any = item.get("type")
        if items.says(item) or kind in _NOTHING_NEW or (kind == "message" and not item.get("content")):
            return None
        reason = items.why_unsaid(item) or items.unknown_type(kind, self._reasons)
        if reason == "bookkeeping":
            return None
        self._reasons[reason] += 1
        return reason

    def _content_of(self, item: items.Payload) -> str:
        content = digest(written({name: value for name, value in item.items() if name not in _CHANGING}))
        self._alike[content] += 1
        return f"unsaid:{content}:{self._alike[content]}"


def _id_of(item: items.Payload) -> str | None:
    own_id = items.own_id(item)
    return None if own_id is None else f"unsaid:{own_id}"
