"""Messages in the shape of JSON, from rows of the index and their contents.

    {message_id, index, at, role, model, parent, thread, is_sidechain, is_turn, is_compact_summary,
     parts: [{part_id, type, text, tool_name, tool_call_id, tool_args, tool_result_for, is_error, is_typed}],
     tokens: {input, output, cache_read, cache_write, reasoning} | null, cost_usd}

A session can have many thousands of messages. Their order is computed from the few columns of `MessageOutline`;
everything else is read for some messages at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index import schema
from hypaware.index.blocks import PartContent, read_contents
from hypaware.index.filters import to_text
from hypaware.index.prices import Cost, PriceTable, TokenCounts

if TYPE_CHECKING:
    import sqlite3

    from hypaware.index.store import Index

Message = dict[str, Any]
_OUTLINE = f"""
SELECT p.at, p.message_index, p.seq, p.message, p.session, p.thread, p.flags & {schema.SIDECHAIN}
FROM parts p {{joined}} WHERE p.flags & {schema.OFF_CONVERSATION} = 0 AND {{condition}}"""
_ROWS = f"""
SELECT p.seq, p.message_index, p.part_index, p.at, p.role, p.type, p.tool, p.model, p.flags,
       {", ".join(f"u.{name}" for name in TokenCounts._fields)}
FROM json_each(?) chosen JOIN parts p ON p.seq = chosen.value LEFT JOIN usage u ON u.seq = p.seq"""
_ROW_COLUMNS = 9
_USAGE = f"""
SELECT p.model, {", ".join(f"u.{name}" for name in TokenCounts._fields)}
FROM json_each(?) chosen JOIN usage u ON u.seq = chosen.value JOIN parts p ON p.seq = u.seq"""
_IDS_PER_QUERY = 500


class MessageOutline(NamedTuple):
    """The place of a message in the conversation, and the sequences of its parts. They sort in order of time."""

    at: int
    message_index: int
    first_seq: int
    message: int
    session: int
    thread: int | None
    is_sidechain: int
    seqs: list[int]


class PartRow(NamedTuple):
    """A row of `parts` with its tokens, if it carries any."""

    seq: int
    message_index: int
    part_index: int
    at: int
    role: int
    type: int
    tool: int | None
    model: int | None
    flags: int
    tokens: TokenCounts | None


class MessageReader:
    def __init__(self, index: Index, prices: PriceTable) -> None:
        self.index = index
        self._prices = prices
        self._names: dict[int | None, str | None] = {None: None}

    def list_messages(self, condition: str, values: Mapping[str, Any], joined: str = "") -> list[MessageOutline]:
        """Return the messages with the rows that match a condition on `parts` as p, in the order of the conversation.

        They are ordered by time, then by their index in their transcript, then by sequence. Rows that are not part of
        the conversation are left out.
        """
        rows = self._select(_OUTLINE.format(joined=joined, condition=condition), values).fetchall()
        # Sequences are unique, so nothing after them is compared.
        rows.sort()
        found: dict[tuple[int, int], MessageOutline] = {}
        for row in rows:
            key = row[3:5]
            if key in found:
                found[key].seqs.append(row[2])
            else:
                found[key] = MessageOutline._make((*row, [row[2]]))
        return list(found.values())

    def read_messages(self, batch: Sequence[tuple[MessageOutline, str | None]]) -> Iterator[Message]:
        """Yield the messages, each with the name of its thread, as documents. Parts that are gone are left out."""
        seqs = [seq for message, _ in batch for seq in message.seqs]
        contents = read_contents(self.index, seqs)
        rows = {row.seq: row for row in self._read_rows(seqs)}
        self.load_names(name for row in rows.values() for name in (row.role, row.type, row.tool, row.model))
        for message, thread in batch:
            parts = [(rows[seq], contents[seq]) for seq in message.seqs if seq in rows and seq in contents]
            parts.sort(key=lambda part: (part[0].part_index, part[0].seq))
            if parts:
                yield self._to_document(parts, thread)

    def read_first_parts(self, messages: Sequence[MessageOutline]) -> list[PartContent | None]:
        contents = read_contents(self.index, [each.first_seq for each in messages])
        return [contents.get(each.first_seq) for each in messages]

    def count_tokens(self, seqs: Sequence[int]) -> tuple[TokenCounts, float | None]:
        """Return the tokens of the rows with these sequences, and what they cost as far as that is known."""
        tokens, cost = TokenCounts(), Cost()
        found = self._select(_USAGE, [json.dumps(seqs)]).fetchall()
        self.load_names(row[0] for row in found)
        for model, *counts in found:
            response = TokenCounts(*counts)
            tokens += response
            cost.add_response(self._prices, self._names[model], response)
        return tokens, cost.as_document()["cost_usd"]

    def load_names(self, numbers: Iterable[int | None]) -> dict[int | None, str | None]:
        """Return the names of these numbers, among others."""
        missing = sorted(number for number in set(numbers) - self._names.keys() if number is not None)
        for start in range(0, len(missing), _IDS_PER_QUERY):
            ids = ",".join(map(str, missing[start : start + _IDS_PER_QUERY]))
            self._names.update(self._select(f"SELECT id, name FROM names WHERE id IN ({ids})").fetchall())
        return self._names

    def _read_rows(self, seqs: Sequence[int]) -> Iterator[PartRow]:
        for row in self._select(_ROWS, [json.dumps(seqs)]):
            tokens = None if row[_ROW_COLUMNS] is None else TokenCounts(*row[_ROW_COLUMNS:])
            yield PartRow._make((*row[:_ROW_COLUMNS], tokens))

    def _select(self, statement: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> sqlite3.Cursor:
        cursor = self.index.connection.cursor()
        # Plain tuples: they are made faster, and can be cut and compared.
        cursor.row_factory = None
        return cursor.execute(statement, values)

    def _to_document(self, parts: Sequence[tuple[PartRow, PartContent]], thread: str | None) -> Message:
        first, content = parts[0]
        flags, tokens, cost = 0, None, Cost()
        for row, _ in parts:
            flags |= row.flags
            if row.tokens is not None:
                tokens = row.tokens if tokens is None else tokens + row.tokens
                cost.add_response(self._prices, self._names[row.model], row.tokens)
        return {
            "message_id": content.message_id,
            "index": first.message_index,
            "at": to_text(min(row.at for row, _ in parts)),
            "role": self._names[first.role],
            "model": next((name for row, _ in parts if (name := self._names[row.model])), None),
            "parent": content.parent,
            "thread": thread,
            "is_sidechain": bool(flags & schema.SIDECHAIN),
            "is_turn": bool(flags & schema.IS_TURN),
            "is_compact_summary": bool(flags & schema.COMPACT_SUMMARY),
            "parts": [self._to_part(row, each) for row, each in parts],
            "tokens": None if tokens is None else tokens.as_document(),
            "cost_usd": cost.as_document()["cost_usd"],
        }

    def _to_part(self, row: PartRow, content: PartContent) -> dict[str, Any]:
        return {
            "part_id": content.part_id,
            "type": self._names[row.type],
            "text": content.text,
            "tool_name": self._names[row.tool],
            "tool_call_id": content.tool_call_id,
            "tool_args": content.tool_args,
            "tool_result_for": content.tool_result_for,
            "is_error": bool(row.flags & schema.IS_ERROR),
            "is_typed": bool(row.flags & schema.IS_TYPED),
        }
