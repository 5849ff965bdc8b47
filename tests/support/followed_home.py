"""A home whose transcripts are followed, step by step, with a clock that the test sets; its lake is a light one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.backfill.providers import load_providers
from hypaware.clients.client import WatchableProvider
from hypaware.config import Config
from hypaware.follow.followed_client import HELD_SECONDS, FollowedClient
from hypaware.follow.follower import survey_client
from hypaware.home import Home
from hypaware.model import canonical
from hypaware.model.datasets import Row
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support.light_home import DATASET, NO_TIMER, flush, import_history
from tests.support.light_lake import read_lake


@dataclass
class FollowedHome:
    home: Home
    folder: Path
    """The user's home folder."""
    client: str = "claude"
    config: Config = field(default_factory=Config)
    began: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(seconds=1))
    now: float = 1000.0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the import; that of the follower is set by the fixture."""
        return {"HOME": str(self.folder)}

    def transcript(self, name: str = "session.jsonl") -> Path:
        where = ".claude/projects/-work" if self.client == "claude" else ".codex/sessions/2026/11/15"
        return self.folder / where / name

    @contextmanager
    def following(self) -> Iterator[FollowedClient]:
        """A client as the daemon follows it, after its first survey. Each one is like a new start of the daemon."""
        providers = load_providers()
        entry = providers.get(self.client)
        assert entry is not None
        provider = entry.provider
        folders = provider.folders(self.environment) if isinstance(provider, WatchableProvider) else ()
        opened = open_home(self.home)
        with Spool(self.home, NO_TIMER) as spool:
            try:
                client = FollowedClient(
                    entry,
                    folders,
                    lambda: survey_client(self.home, self.config, providers, entry, opened.store, spool),
                    began=self.began,
                    clock=lambda: self.now,
                )
                client.work()
                yield client
            finally:
                opened.store.close()

    def notice(self, client: FollowedClient, path: Path) -> None:
        """Tell the client of a change, and let it work as soon as it may survey again."""
        client.note_change(path, removed=False)
        self.now += 0.25
        client.work()

    def settle(self, client: FollowedClient) -> None:
        """Let time pass until everything that is held back by time is recorded."""
        for _ in range(4):
            self.now += HELD_SECONDS
            client.work()

    def follow_once(self) -> None:
        with self.following() as client:
            client.request_survey()
            self.settle(client)

    def write(self, *lines: Any, name: str = "session.jsonl", mode: str = "ab") -> Path:
        path = self.transcript(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.writelines(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        return path

    @property
    def spooled(self) -> int:
        files = segments.list_files(segments.spool_folder(self.home, DATASET))
        return sum(map(segments.count_lines, files))

    def flushed(self) -> list[Row]:
        """Flush, and return the rows of the lake with parsed attributes."""
        flush(self.home)
        return [row | {"attributes": canonical.loads(row["attributes"])} for row in read_lake(self.home, DATASET)]

    def imported(self) -> int:
        """Import, and return the number of rows that were written."""
        return import_history(self.home, self.environment, self.client).rows.written


def parts(rows: Iterable[Row]) -> Counter[str]:
    return Counter(row["part_id"] for row in rows)


def output_tokens(rows: Iterable[Row]) -> int:
    return sum(row["attributes"].get("usage", {}).get("output_tokens", 0) for row in rows)
