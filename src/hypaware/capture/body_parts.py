"""A request's body in parts, so that a history which every request repeats is stored once.

A body is cut at the edges of what clients repeat (`json_pieces`): the blocks of its messages (or its items), its system
prompt, its tools. `body_refs` then says how to put it together, exactly:

    {"v": 1, "new": [<hash of a part>, …], "body": [<token>, …]}
    token = "text as it stands" | [<hash of a part>] | [<hash of a part>, 1]

`request_body` holds the `new` parts, a line each: written JSON has no line ends of its own. A token `[hash, 1]` names a
part whose text is itself a list of tokens: tokens in a row make such groups, so that a row does not name every part of
a long history. Small pieces stand as text. What a client adds to a block for this request only (`cache_control`, its
last key) is cut off, else the last message of each request would be stored twice.

**Where parts live.** A part is new in the first row *of its session and UTC day* that has it; later rows of that
session and day name it by its hash. Retention drops whole days, so it never takes a part away from a row that it
leaves. What is remembered of stored parts is bounded; what is forgotten is stored again, which costs space only.

A body that cannot be put together again to the letter (its JSON was written in a way that nobody here writes) is not
cut: `body_refs` is null and `request_body` is all of it.
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
"""Hash of a part → its text, or None if nobody has it."""

_GROUP, _SMALLEST_GROUP = 16, 4
_HASH_DIGITS = 24
_MAX_DEPTH = 8


class PartsMissing(HypError):
    """A body cannot be put together: the rows that hold these parts are gone."""

    def __init__(self, exchange_id: Any, missing: list[str]) -> None:
        self.missing = missing
        super().__init__(
            f"exchange {exchange_id}: {len(missing)} parts of its request are gone, {', '.join(missing[:3])} first",
            kind="parts_missing",
        )


@dataclass(frozen=True)
class Cut:
    """A body in parts, as a row holds it; `new` are the hashes that are known once the row is stored."""

    body: str
    refs: dict[str, Any] | None
    new: frozenset[str] = frozenset()


class StoredParts:
    """Which parts of which session and day are stored; the least recent ones are forgotten."""

    def __init__(self, *, max_sessions: int = 128, max_parts: int = 8192) -> None:
        self._known: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._max_sessions, self._max_parts = max_sessions, max_parts

    def of(self, session: str, day: str) -> set[str]:
        return self._known.get((session, day), set())

    def keep(self, session: str, day: str, parts: frozenset[str]) -> None:
        """To be called when the row that holds them is stored, and not before."""
        known = self._known.setdefault((session, day), set())
        if len(known) + len(parts) > self._max_parts:
            known.clear()
        known |= parts
        self._known.move_to_end((session, day))
        while len(self._known) > self._max_sessions:
            self._known.popitem(last=False)


def cut(text: str, document: Any, stored: set[str]) -> Cut:
    pieces = pieces_of(text, document)
    if pieces is None:
        return Cut(text, None)
    new: dict[str, str] = {}
    tokens = _tokens(pieces, stored, new)
    grouped = _grouped(tokens, stored, new)
    return Cut("\n".join(new.values()), {"v": 1, "new": list(new), "body": grouped}, frozenset(new))


def parts_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The parts that a row holds: hash → text."""
    refs, body = _refs(row), row.get("request_body")
    if refs is None or not isinstance(body, str):
        return {}
    return dict(zip(refs["new"], body.split("\n"), strict=False))


def restore(row: Mapping[str, Any], lookup: Lookup) -> str | None:
    """The request's body as it was; raises `PartsMissing` with what is not there."""
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

    whole = "".join(_texts(refs["body"], text_of, _MAX_DEPTH))
    if missing:
        raise PartsMissing(row.get("exchange_id"), missing)
    return whole


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


def _tokens(pieces: list[str], stored: set[str], new: dict[str, str]) -> list[Token]:
    tokens: list[Token] = []
    for piece in pieces:
        if len(piece) >= SMALL:
            tokens.append([_named(piece, stored, new)])
        elif tokens and isinstance(tokens[-1], str) and len(tokens[-1]) < SMALL:
            tokens[-1] += piece
        else:
            tokens.append(piece)
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
    """One in eight is, and nothing but the token tells: after a change, the groups are soon the same again."""
    return token[0][0] in "01" if isinstance(token, list) else zlib.crc32(token.encode()) % 8 == 0


def _named(part: str, stored: set[str], new: dict[str, str]) -> str:
    name = hashlib.sha256(part.encode()).hexdigest()[:_HASH_DIGITS]
    if name not in stored:
        new[name] = part
    return name
