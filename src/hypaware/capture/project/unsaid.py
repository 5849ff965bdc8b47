"""Items of the Responses dialect that produce no row, because an import of the client's rollout produces none either.

They are counted once each, under the import's reasons, although later requests repeat them. An item is recognized by
its id, or else by its content and the number of equal items before it in the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypaware.capture.project.turn import Unsaid
from hypaware.capture.project.values import digest, written
from hypaware.clients.codex import items

# These refer to earlier items, or hold nothing readable.
_NOTHING_NEW = ("item_reference", "reasoning")
_CHANGING = ("id", "status")


class UnsaidItems:
    """The skipped items of one exchange: first those of its request, then those of its response."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def in_request(self, payloads: Iterable[items.Payload]) -> list[Unsaid]:
        reasons = ((item, self._reason(item)) for item in payloads)
        return [Unsaid(reason, (_id_of(item) or self._content_id(item),)) for item, reason in reasons if reason]

    def in_response(self, payloads: Iterable[items.Payload]) -> list[Unsaid]:
        """Return the skipped items under both names, because not every client sends back the ids that it was given."""
        reasons = ((item, self._reason(item)) for item in payloads)
        names = ((reason, self._content_id(item), _id_of(item)) for item, reason in reasons if reason)
        return [Unsaid(reason, (content, *([own_id] if own_id else ()))) for reason, content, own_id in names]

    def _reason(self, item: items.Payload) -> str | None:
        """Return why an item is skipped; None if it produces a row or holds nothing worth counting."""
        kind: Any = item.get("type")
        if items.says(item) or kind in _NOTHING_NEW or (kind == "message" and not item.get("content")):
            return None
        reason = items.why_unsaid(item) or items.unknown_type(kind, self._reasons)
        if reason == "bookkeeping":
            return None
        self._reasons[reason] += 1
        return reason

    def _content_id(self, item: items.Payload) -> str:
        content = digest(written({name: value for name, value in item.items() if name not in _CHANGING}))
        self._counts[content] += 1
        return f"skipped:{content}:{self._counts[content]}"


def _id_of(item: items.Payload) -> str | None:
    own_id = items.own_id(item)
    return None if own_id is None else f"skipped:{own_id}"
