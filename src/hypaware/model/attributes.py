"""`attributes`: what has no column of its own, in groups (client, usage, gateway, …).

A merge, later wins, one level deep: client ← message ← exchange ← gateway. Token counts join last, and only where the
caller puts them: on one row of a response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypaware.model import storable
from hypaware.model.exchange import Exchange, Message

Groups = dict[str, Any]

USAGE = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "total_tokens",
)


class Attributes:
    """The attributes of an exchange's messages, as the canonical text that is stored."""

    def __init__(self, exchange: Exchange, gateway: Mapping[str, Any], skipped: Counter[str]) -> None:
        self._skipped = skipped
        name = storable.text(exchange.client_name, "attributes", Counter())
        version = storable.text(exchange.client_version, "attributes", Counter())
        self._client: Groups = {"client": {"name": name, "version": version}}
        self._exchange = self._named(exchange.attributes)
        self._gateway = self._named({"gateway": dict(gateway)})
        self._plain = _merged(_merged(self._client, self._exchange), self._gateway)
        self._plain_text = storable.json_text(self._plain, "attributes", skipped)

    def text(
        self, message: Message, identity_source: str | None, time_source: str | None, usage: Groups | None = None
    ) -> str:
        groups = self._of(message, identity_source, time_source)
        if usage:
            groups = {**groups, "usage": usage}
        elif groups is self._plain:
            return self._plain_text
        return storable.json_text(groups, "attributes", self._skipped)

    def _of(self, message: Message, identity_source: str | None, time_source: str | None) -> Groups:
        if not (message.attributes or identity_source or time_source):
            return self._plain
        own = self._named(message.attributes)
        if not (identity_source or time_source) and self._plain.keys().isdisjoint(own):
            return {**self._plain, **own}
        noted = {"identity_source": identity_source, "time_source": time_source}
        merged = _merged(self._client, own)
        merged = _merged(merged, self._exchange)
        merged = _merged(merged, {"gateway": {name: value for name, value in noted.items() if value}})
        return _merged(merged, self._gateway)

    def usage(self, given: Any) -> Groups | None:
        """Token counts, as far as they are counts."""
        if not isinstance(given, Mapping):
            self._skipped["bad_usage"] += 1
            return None
        counts = {name: given[name] for name in USAGE if given.get(name) is not None}
        good = {name: count for name, count in counts.items() if type(count) is int and abs(count) < 2**53}
        if len(good) < len(counts):
            self._skipped["bad_usage"] += len(counts) - len(good)
        return good

    def _named(self, groups: Mapping[str, Any]) -> Groups:
        """Groups whose names are theirs to use; what they hold is judged when it is written."""
        named: Groups = {}
        for name, value in groups.items():
            if not isinstance(name, str) or name == "usage" or (name == "client" and not isinstance(value, dict)):
                self._skipped["bad_attributes"] += 1
            elif value is not None:
                named[name] = value
        return named


def _merged(under: Groups, over: Groups) -> Groups:
    merged = {**under}
    for name, value in over.items():
        here = merged.get(name)
        merged[name] = {**here, **value} if isinstance(here, dict) and isinstance(value, dict) else value
    return merged
