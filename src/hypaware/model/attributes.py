"""Build the `attributes` column: groups (client, usage, gateway, …) of values that have no column of their own.

Groups merge one level deep, and later ones win: client, message, exchange, gateway. Token counts are added last, and
only to the one row of a response that the caller chooses.
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
    """Renders the attributes of one exchange's messages as canonical JSON text."""

    def __init__(self, exchange: Exchange, gateway: Mapping[str, Any], skipped: Counter[str]) -> None:
        self._skipped = skipped
        name = storable.text(exchange.client_name, "attributes", Counter())
        version = storable.text(exchange.client_version, "attributes", Counter())
        self._client: Groups = {"client": {"name": name, "version": version}}
        self._exchange = self._valid_groups(exchange.attributes)
        self._gateway = self._valid_groups({"gateway": dict(gateway)})
        self._plain = _merged(_merged(self._client, self._exchange), self._gateway)
        self._plain_text = storable.json_text(self._plain, "attributes", skipped)

    def as_text(
        self, message: Message, identity_source: str | None, time_source: str | None, usage: Groups | None = None
    ) -> str:
        groups = self._groups_of(message, identity_source, time_source)
        if usage:
            groups = {**groups, "usage": usage}
        elif groups is self._plain:
            return self._plain_text
        return storable.json_text(groups, "attributes", self._skipped)

    def _groups_of(self, message: Message, identity_source: str | None, time_source: str | None) -> Groups:
        if not (message.attributes or identity_source or time_source):
            return self._plain
        own = self._valid_groups(message.attributes)
        if not (identity_source or time_source) and self._plain.keys().isdisjoint(own):
            return {**self._plain, **own}
        sources = {"identity_source": identity_source, "time_source": time_source}
        merged = _merged(self._client, own)
        merged = _merged(merged, self._exchange)
        merged = _merged(merged, {"gateway": {name: value for name, value in sources.items() if value}})
        return _merged(merged, self._gateway)

    def valid_usage(self, given: Any) -> Groups | None:
        """Return the token counts that are integers below 2^53 and count the others as skipped."""
        if not isinstance(given, Mapping):
            self._skipped["bad_usage"] += 1
            return None
        counts = {name: given[name] for name in USAGE if given.get(name) is not None}
        good = {name: count for name, count in counts.items() if type(count) is int and abs(count) < 2**53}
        if len(good) < len(counts):
            self._skipped["bad_usage"] += len(counts) - len(good)
        return good

    def _valid_groups(self, groups: Mapping[str, Any]) -> Groups:
        """Return the groups whose names are allowed. Their values are checked when they are written."""
        valid: Groups = {}
        for name, value in groups.items():
            if not isinstance(name, str) or name == "usage" or (name == "client" and not isinstance(value, dict)):
                self._skipped["bad_attributes"] += 1
            elif value is not None:
                valid[name] = value
        return valid


def _merged(lower: Groups, upper: Groups) -> Groups:
    merged = {**lower}
    for name, value in upper.items():
        current = merged.get(name)
        merged[name] = {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value
    return merged
