"""What is really there: both lakes through PyIceberg, the transcripts through nothing but JSON; no code of HypAware.

A row is the same in both lakes if every column is that is not a lake's own (`_hyp_…`). The verdict holds if each part
is in the user's lake once, at the server once, with the same content, and all parts of the sample sessions are among
them.
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
_OWN = "_hyp_"


class Part(NamedTuple):
    id: str
    session: str
    content: bytes
    """A hash of all that the row says: somebody's own history may be large."""


@dataclass(frozen=True)
class Verdict:
    in_lake: int
    at_server: int
    twice: int
    """Rows too many, in one or the other."""
    only_in_lake: int
    only_at_server: int
    different: int
    """Rows that are in both and do not say the same."""
    in_transcripts: Mapping[str, int]
    """Parts by session; empty where the transcripts are not the demo's own."""
    imported: Mapping[str, int]

    @property
    def holds(self) -> bool:
        return (
            self.in_lake > 0
            and self.in_lake == self.at_server
            and self.twice == self.only_in_lake == self.only_at_server == self.different == 0
            and self.imported == self.in_transcripts
        )


def judge(lake: Sequence[Part], server: Sequence[Part], in_transcripts: Mapping[str, int]) -> Verdict:
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


def parts_at(home: Path) -> list[Part]:
    """In the lake of a home."""
    from pyiceberg.catalog.sql import SqlCatalog

    lake = home / "lake"
    catalog = SqlCatalog("hyp", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse")
    with closing(catalog):
        batches = catalog.load_table(TABLE).scan().to_arrow_batch_reader()
        return [part for batch in batches for part in _read(batch.to_pylist())]


def parts_in(transcripts: Iterable[Path]) -> dict[str, int]:
    """By session, in transcripts as simple as the demo's own: each block of content is one part."""
    return {path.stem[-36:]: sum(map(_parts, path.read_text().splitlines())) for path in transcripts}


def _read(rows: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    for row in rows:
        content = sorted((name, value) for name, value in row.items() if not name.startswith(_OWN))
        yield Part(row["part_id"], row["session_id"], blake2b(repr(content).encode(), digest_size=16).digest())


def _parts(line: str) -> int:
    said = json.loads(line)
    if said["type"] == "response_item":
        return len(said["payload"].get("content") or [None])
    content = said.get("message", {}).get("content", [])
    return 1 if isinstance(content, str) else len(content)
