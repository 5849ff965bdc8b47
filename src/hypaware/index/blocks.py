"""Blocks: the content of some hundred parts, compressed together, and their reading.

A block has two columns, each `zstd(JSON array)` with one entry per part, in the order of their sequences:

    keys   [seq, message_id, part_index, tool_call_id, tool_result_for, parent, {more}], without nulls at the end
    texts  [text, tool_args], a text alone, or null

`tool_args` is the JSON text of the arguments. Ids and texts are apart because each compresses better among its kind.
Without `index.text`, all texts are null. A row of `parts` names its block, and a block holds no other parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from backports import zstd

from hypaware.index.tokens import prepare_text

if TYPE_CHECKING:
    import sqlite3

    from hypaware.index.store import Index

Keys = list[Any]
_LEVEL = 3
_MAX_ROWS = 512
_MAX_BYTES = 1 << 18
_SEQS_PER_QUERY = 500
_CACHED_BLOCKS = 4


class PartContent(NamedTuple):
    """What the display of a part needs and `parts` does not hold."""

    seq: int
    message_id: str
    part_id: str
    text: str | None
    tool_args: Any
    """The arguments of a tool call as a JSON value."""
    tool_call_id: str | None
    tool_result_for: str | None
    parent: str | None
    """The id of the previous message in the thread."""
    status: dict[str, Any] | None
    """tool_status, finish_reason, error_code, error_message."""
    subtype: str | None
    """`provider_subtype`: for rows that are not part of the conversation, what they are."""
    attachment_type: str | None
    response: int | None
    """A hash of the provider's id of the response; on the model's parts except tool calls."""
    agent_id: str | None
    """The subagent that wrote the message; None in the main thread."""
    parent_thread: str | None
    """The thread that started this one (Codex subagents)."""
    spawned_by: str | None
    """The tool call that started this subagent (Claude Code), on the first message of its thread."""


class BlockEntry(NamedTuple):
    keys: Keys
    text: str | None
    tool_args: str | None

    @property
    def seq(self) -> int:
        seq: int = self.keys[0]
        return seq

    @property
    def searchable_text(self) -> str | None:
        """What the full-text table holds of the part."""
        return prepare_text(self.text, self.tool_args)


def read_contents(index: Index, seqs: Iterable[int]) -> dict[int, PartContent]:
    """Return the contents of the parts with these sequences. Parts that do not exist are left out."""
    found: dict[int, PartContent] = {}
    wanted: dict[int, set[int]] = {}
    for block, seq in _find_blocks(index.connection, sorted(set(seqs))):
        wanted.setdefault(block, set()).add(seq)
    for block, members in wanted.items():
        found |= {entry.seq: to_content(entry) for entry in load_block(index.connection, block, members)}
    return found


def read_session_contents(index: Index, session: int) -> Iterator[PartContent]:
    """Yield the contents of the parts of a session (`sessions.id`), in the order of their sequences."""
    cached: dict[int, dict[int, BlockEntry]] = {}
    query = "SELECT seq, block FROM parts WHERE session = ? ORDER BY seq"
    for seq, block in index.connection.execute(query, (session,)):
        if block not in cached:
            if len(cached) == _CACHED_BLOCKS:
                del cached[next(iter(cached))]
            cached[block] = {entry.seq: entry for entry in load_block(index.connection, block)}
        yield to_content(cached[block][seq])


def to_content(entry: BlockEntry) -> PartContent:
    seq, message_id, part_index, call_id, result_for, parent, more = entry.keys + [None] * (7 - len(entry.keys))
    more = more or {}
    return PartContent(
        seq=seq,
        message_id=message_id,
        part_id=f"{message_id}#{part_index}",
        text=entry.text,
        tool_args=None if entry.tool_args is None else parse_json(entry.tool_args),
        tool_call_id=call_id,
        tool_result_for=result_for,
        parent=parent,
        status=more.get("status"),
        subtype=more.get("subtype"),
        attachment_type=more.get("attachment"),
        response=more.get("response"),
        agent_id=more.get("agent"),
        parent_thread=more.get("parent_thread"),
        spawned_by=more.get("spawned_by"),
    )


def parse_json(text: str) -> Any:
    """Return the value of a JSON column, or its text if another program has stored something else there."""
    from hypaware.model import canonical  # loads OpenSSL, and most parts have no arguments

    try:
        return canonical.loads(text)
    except (ValueError, RecursionError):
        return text


def encode_keys(keys: Keys) -> bytes:
    while keys[-1] is None:
        keys.pop()
    return orjson.dumps(keys)


def encode_text(text: str | None, tool_args: str | None) -> bytes:
    return orjson.dumps(text if tool_args is None else (text, tool_args))


def pack(encoded: Iterable[bytes]) -> bytes:
    return zstd.compress(b"[" + b",".join(encoded) + b"]", _LEVEL)


def split_into_blocks(sizes: Sequence[int]) -> Iterator[range]:
    """Cut entries of these sizes into blocks of bounded length, of at least one entry each."""
    start = size = 0
    for place, length in enumerate(sizes):
        if place > start and (place - start >= _MAX_ROWS or size + length > _MAX_BYTES):
            yield range(start, place)
            start, size = place, 0
        size += length
    if sizes:
        yield range(start, len(sizes))


def load_block(connection: sqlite3.Connection, block: int, seqs: Collection[int] | None = None) -> list[BlockEntry]:
    ((keys, texts),) = connection.execute("SELECT keys, texts FROM blocks WHERE id = ?", (block,))
    return [
        BlockEntry(key, *text) if type(text) is list else BlockEntry(key, text, None)
        for key, text in zip(_unpack(keys), _unpack(texts), strict=True)
        if seqs is None or key[0] in seqs
    ]


def remove_entries(connection: sqlite3.Connection, block: int, seqs: Collection[int]) -> list[BlockEntry]:
    """Remove the entries of these parts from a block, and return them. A block without entries is deleted."""
    entries = load_block(connection, block)
    kept = [entry for entry in entries if entry.seq not in seqs]
    if kept:
        keys = pack(encode_keys(entry.keys) for entry in kept)
        texts = pack(encode_text(entry.text, entry.tool_args) for entry in kept)
        connection.execute("UPDATE blocks SET keys = ?, texts = ? WHERE id = ?", (keys, texts, block))
    else:
        connection.execute("DELETE FROM blocks WHERE id = ?", (block,))
    return [entry for entry in entries if entry.seq in seqs]


def _unpack(data: bytes) -> list[Any]:
    values: list[Any] = orjson.loads(zstd.decompress(data))
    return values


def _find_blocks(connection: sqlite3.Connection, seqs: list[int]) -> Iterator[tuple[int, int]]:
    for start in range(0, len(seqs), _SEQS_PER_QUERY):
        some = seqs[start : start + _SEQS_PER_QUERY]
        marks = ",".join("?" * len(some))
        yield from connection.execute(f"SELECT block, seq FROM parts WHERE seq IN ({marks})", some)
