"""A home with sinks and streams, put into any state that a delivery can leave, without a delivery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from hypaware import config as configuration
from hypaware.config import Config
from hypaware.export import configured
from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.state import dead_letters, flushes, intents, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.store import Store
from hypaware.state.stream_key import StreamKey

DATASET = "ai_gateway_messages"


def key(sink: str = "archive", source: str = "claude", dataset: str = DATASET) -> StreamKey:
    return StreamKey(sink, dataset, source)


def write_config(home: Home, text: str) -> None:
    """In one step: a daemon that looks just then finds the old one or the new one, and never half of it."""
    new = home.config.with_suffix(".new")
    new.write_text(text)
    new.replace(home.config)


@dataclass(frozen=True)
class StandingHome:
    home: Home

    def declare(self, **folders: Path | str) -> Config:
        """Blob sinks by name, each into its folder."""
        self.home.root.mkdir(parents=True, exist_ok=True)
        tables = [
            f'[sinks.{name}]\nkind = "blob"\ndestination = "{folder}"\nschedule = "*/5 * * * *"\n'
            for name, folder in folders.items()
        ]
        write_config(self.home, 'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n' + "".join(tables))
        return self.config

    @property
    def config(self) -> Config:
        return configuration.load(self.home)

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_home(self.home).store) as store:
            yield store

    @contextmanager
    def change(self) -> Iterator[Connection]:
        with self.store() as store, store.transaction() as connection:
            yield connection

    def recorded(self, **high_water: int) -> None:
        """As if flushes had committed rows of these sources."""
        with self.change() as connection:
            flushes.raise_high_water(connection, DATASET, high_water)

    def address(self, sink: str = "archive") -> str:
        """Where the config says that the sink's rows go."""
        opened = open_home(self.home)
        opened.store.close()
        return configured.address(self.home, self.config, opened.identity, sink)

    def delivered(self, stream: StreamKey, watermark: int | None) -> None:
        """As if a round had delivered that far, to where the config points now; None as if it had found nothing out."""
        address = self.address(stream.sink)
        with self.change() as connection:
            streams.create(connection, stream, address)
            if watermark is not None:
                streams.raise_watermark(connection, stream, watermark)
                streams.succeeded(connection, stream)

    def planned(self, stream: StreamKey, *ends: int, acked: int = 0) -> None:
        """An intent with a chunk up to each of the ends."""
        starts = (self.stream(stream).watermark or 0, *ends[:-1])
        chunks = tuple(
            PlannedChunk(f"chunk-{last}", "i" * 32, after, last, last - after)
            for after, last in zip(starts, ends, strict=True)
        )
        with self.change() as connection:
            intents.plan(connection, Intent(stream, starts[0], ends[-1], chunks))
            for chunk in chunks[:acked]:
                intents.acknowledge(connection, stream, chunk, chunk.rows)

    def buried(self, stream: StreamKey, letter_id: str, seq: int, body: bytes | None = None) -> None:
        letter = DeadLetter(letter_id, stream, "i" * 32, seq - 1, seq, 1, "too odd", "2026-11-15T07:00:00+00:00")
        with self.change() as connection:
            dead_letters.bury(connection, letter, body)

    def stream(self, stream: StreamKey) -> streams.Stream:
        with self.store() as store, store.reading() as connection:
            found = streams.load(connection, stream)
        assert found is not None
        return found

    def intent(self, stream: StreamKey) -> Intent | None:
        with self.store() as store, store.reading() as connection:
            return intents.pending(connection, stream)

    def letters(self) -> list[str]:
        with self.store() as store, store.reading() as connection:
            return [letter.id for letter in dead_letters.all_letters(connection)]
