"""Parts of request bodies, so that the history that every request repeats is stored once.

A body is split along the values that clients repeat: the blocks of its messages (or its items), its system prompt, its
tools. `body_refs` says how to reassemble it, byte for byte:

    {"v": 1, "new": [<hash of a part>, …], "body": [<token>, …]}
    token = "literal text" | [<hash of a part>] | [<hash of a part>, 1]

`request_body` holds the `new` parts, one per line: serialized JSON contains no line ends. A token `[hash, 1]` names a
part whose text is itself a list of tokens: runs of tokens form such groups, so that a row does not name every part of a
long history. Small fragments stay literal text. A key that a client adds to a block for one request only
(`cache_control`, the last key) is split off; otherwise the last message of each request would be stored twice.

**Where parts are stored.** A part is new in the first row *of its session and UTC day* that contains it; later rows of
that session and day refer to it by its hash. Retention removes whole days, so it never removes a part that a remaining
row needs. The memory of stored parts is bounded; a forgotten part is stored again, which costs only space.

A body that cannot be reassembled byte for byte (its JSON was serialized in an unknown way) is not split: `body_refs` is
null and `request_body` is the whole body.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hypaware.capture.json_pieces import SMALL, pieces_of
from hypaware.errors import HypError
from hypaware.model import canonical

Token = str | list[Any]
Lookup = Callable[[str], str | None]
"""Hash of a part → its text, or None if it is missing."""

_GROUP, _SMALLEST_GROUP = 16, 4
_HASH_DIGITS = 24
_MAX_DEPTH = 8


class PartsMissing(HypError):
    """A body cannot be reassembled: the rows that hold these parts are gone."""

    def __init__(self, exchange_id: Any, missing: list[str]) -> None:
        self.missing = missing
        super().__init__(
            f"exchange {exchange_id}: {len(missing)} parts of its request are missing, first {', '.join(missing[:3])}",
            kind="parts_missing",
        )


@dataclass(frozen=True)
class Cut:
    """A body in parts, as a row holds it. The hashes in `new` are known once the row is stored."""

    body: str
    refs: dict[str, Any] | None
    new: frozenset[str] = frozenset()


class StoredParts:
    """The parts that are stored for each session and day; the least recent sessions are evicted."""

    def __init__(self, *, max_sessions: int = 128, max_parts: int = 8192) -> None:
        self._known: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._max_sessions, self._max_parts = max_sessions, max_parts

    def known(self, session: str, day: str) -> set[str]:
        return self._known.get((session, day), set())

    def add(self, session: str, day: str, parts: frozenset[str]) -> None:
        """Add parts. Call it only after the row that holds them is stored."""
        known = self._known.setdefault((session, day), set())
        if len(known) + len(parts) > self._max_parts:
            known.clear()
        known |= parts
        self._known.move_to_end((session, day))
        while len(self._known) > self._max_sessions:
            self._known.popitem(last=False)


def cut(text: str, document: Any, stored: set[str]) -> Cut:
    fragments = pieces_of(text, document)
    if fragments is None:
        return Cut(text, None)
    new: dict[str, str] = {}
    tokens = _tokens(fragments, stored, new)
    grouped = _grouped(tokens, stored, new)
    return Cut("\n".join(new.values()), {"v": 1, "new": list(new), "body": grouped}, frozenset(new))


def parts_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts that a row holds: hash → text."""
    refs, body = _refs(row), row.get("request_body")
    if refs is None or not isinstance(body, str):
        return {}
    return dict(zip(refs["new"], body.split("\n"), strict=False))


def restore(row: Mapping[str, Any], lookup: Lookup) -> str | None:
    """Return the original request body; raise `PartsMissing` if parts are missing."""
    refs, body = _refs(row), row.get("request_body")
    if refs is None:
        return body
    held = parts_of(row)
    missing: list[str] = []

    def text_of(name: str) -> str:
        found = held.get(name) or lookup(name)
        if found is None:
            missing.append(name)
        return found or ""

    body_text = "".join(_texts(refs["body"], text_of, _MAX_DEPTH))
    if missing:
        raise PartsMissing(row.get("exchange_id"), missing)
    return body_text


def _texts(tokens: list[Token], text_of: Callable[[str], str], depth: int) -> Iterator[str]:
    for token in tokens:
        if isinstance(token, str):
            yield token
        elif len(token) == 1:
            yield text_of(token[0])
        elif depth > 0 and (group := text_of(token[0])):
            yield from _texts(orjson.loads(group), text_of, depth - 1)


def _refs(row: Mapping[str, Any]) -> dict[str, Any] | None:
    refs = row.get("body_refs")
    if isinstance(refs, str):
        refs = canonical.parse(refs)
    return refs if isinstance(refs, dict) else None


def _tokens(fragments: list[str], stored: set[str], new: dict[str, str]) -> list[Token]:
    tokens: list[Token] = []
    for fragment in fragments:
        if len(fragment) >= SMALL:
            tokens.append([_named(fragment, stored, new)])
        elif tokens and isinstance(tokens[-1], str) and len(tokens[-1]) < SMALL:
            tokens[-1] += fragment
        else:
            tokens.append(fragment)
    return tokens


def _grouped(tokens: list[Token], stored: set[str], new: dict[str, str]) -> list[Token]:
    if len(tokens) <= _GROUP:
        return tokens
    groups: list[Token] = []
    run: list[Token] = []
    for token in tokens:
        run.append(token)
        if len(run) >= _SMALLEST_GROUP and _is_edge(token):
            groups.append([_named(orjson.dumps(run).decode(), stored, new), 1])
            run = []
    return [*_grouped(groups, stored, new), *run] if groups else run


def _is_edge(token: Token) -> bool:
    """Return whether a group ends here: for one token in eight, by its content alone.

    After a change in the history, the groups therefore soon become the same again.
    """
    return token[0][0] in "01" if isinstance(token, list) else zlib.crc32(token.encode()) % 8 == 0


def _named(part: str, stored: set[str], new: dict[str, str]) -> str:
    name = hashlib.sha256(part.encode()).hexdigest()[:_HASH_DIGITS]
    if name not in stored:
        new[name] = part
    return name
