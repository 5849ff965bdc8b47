"""An independent check: reads both lakes with PyIceberg and the transcripts as JSON, without code of HypAware.

Two rows are equal if all columns are, except the internal ones of each lake (`_hyp_…`). The verdict holds if each part
is exactly once in the user's lake and on the server, with the same content, and if all parts of the sample sessions are
among them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

TABLE = ("hypaware", "ai_gateway_messages")
_INTERNAL = "_hyp_"


class Part(NamedTuple):
    id: str
    session: str
    content: bytes
    """A hash of the row's content, because the history may be large."""


@dataclass(frozen=True)
class Verdict:
    in_lake: int
    at_server: int
    twice: int
    """Duplicate rows in either lake."""
    only_in_lake: int
    only_at_server: int
    different: int
    """Rows in both lakes with different content."""
    in_transcripts: Mapping[str, int]
    """Parts by session; empty unless the sample transcripts are used."""
    imported: Mapping[str, int]

    @property
    def holds(self) -> bool:
        return (
            self.in_lake > 0
            and self.in_lake == self.at_server
            and self.twice == self.only_in_lake == self.only_at_server == self.different == 0
            and self.imported == self.in_transcripts
        )


def compare(lake: Sequence[Part], server: Sequence[Part], in_transcripts: Mapping[str, int]) -> Verdict:
    here, there = ({part.id: part.content for part in parts} for parts in (lake, server))
    sessions = Counter(part.session for part in lake)
    return Verdict(
        in_lake=len(lake),
        at_server=len(server),
        twice=len(lake) - len(here) + len(server) - len(there),
        only_in_lake=len(here.keys() - there.keys()),
        only_at_server=len(there.keys() - here.keys()),
        different=sum(here[part] != there[part] for part in here.keys() & there.keys()),
        in_transcripts=in_transcripts,
        imported={session: sessions[session] for session in in_transcripts},
    )


def read_parts(home: Path) -> list[Part]:
    """Read all parts in the lake of a home."""
    from pyiceberg.catalog.sql import SqlCatalog

    lake = home / "lake"
    catalog = SqlCatalog("hyp", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse")
    with closing(catalog):
        batches = catalog.load_table(TABLE).scan().to_arrow_batch_reader()
        return [part for batch in batches for part in _to_parts(batch.to_pylist())]


def count_parts(transcripts: Iterable[Path]) -> dict[str, int]:
    """Count the parts by session, in simple transcripts: each block of content is one part."""
    return {path.stem[-36:]: sum(map(_count_line, path.read_text().splitlines())) for path in transcripts}


def _to_parts(rows: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    for row in rows:
        content = sorted((name, value) for name, value in row.items() if not name.startswith(_INTERNAL))
        yield Part(row["part_id"], row["session_id"], blake2b(repr(content).encode(), digest_size=16).digest())


def _count_line(line: str) -> int:
    entry = json.loads(line)
    if entry["type"] == "response_item":
        return len(entry["payload"].get("content") or [None])
    content = entry.get("message", {}).get("content", [])
    return 1 if isinstance(content, str) else len(content)
