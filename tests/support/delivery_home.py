"""A home with sinks and streams in any state that a delivery can leave, without running a delivery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypaware import config
from hypaware.config import Config
from hypaware.export import sink_registry
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.home_opener import open_home
from hypaware.state.store import Connection, StateStore
from hypaware.state.streams import Intent, PlannedChunk, StreamKey

DATASET = "ai_gateway_messages"


def key(sink: str = "archive", source: str = "claude", dataset: str = DATASET) -> StreamKey:
    return StreamKey(sink, dataset, source)


def write_config(home: Home, text: str) -> None:
    """Replace the config atomically, so that a running daemon never reads half of it."""
    new = home.config.with_suffix(".new")
    new.write_text(text)
    new.replace(home.config)


@dataclass(frozen=True)
class DeliveryHome:
    home: Home

    def declare(self, **folders: Path | str) -> Config:
        """Configure blob sinks by name, each with its folder."""
        self.home.root.mkdir(parents=True, exist_ok=True)
        tables = [
            f'[sinks.{name}]\nkind = "blob"\ndestination = "{folder}"\nschedule = "*/5 * * * *"\n'
            for name, folder in folders.items()
        ]
        write_config(self.home, 'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n' + "".join(tables))
        return self.config

    @property
    def config(self) -> Config:
        return config.load(self.home)

    @contextmanager
    def store(self) -> Iterator[StateStore]:
        with closing(open_home(self.home).store) as store:
            yield store

    @contextmanager
    def change(self) -> Iterator[Connection]:
        with self.store() as store, store.transaction() as connection:
            yield connection

    def recorded(self, **high_water: int) -> None:
        """Record rows of these sources, as flushes would."""
        with self.change() as connection:
            flushes.raise_high_water(connection, DATASET, high_water)

    def address(self, sink: str = "archive") -> str:
        """Return the configured destination of the sink."""
        opened = open_home(self.home)
        opened.store.close()
        return sink_registry.sink_address(self.home, self.config, opened.identity, sink)

    def delivered(self, stream: StreamKey, watermark: int | None) -> None:
        """Record a delivery to the configured address up to the watermark, or a stream without a watermark."""
        address = self.address(stream.sink)
        with self.change() as connection:
            streams.create_stream(connection, stream, address)
            if watermark is not None:
                streams.raise_watermark(connection, stream, watermark)
                streams.record_success(connection, stream)

    def planned(self, stream: StreamKey, *ends: int, acked: int = 0) -> None:
        """Save an intent with a chunk up to each of the ends."""
        starts = (self.stream(stream).watermark or 0, *ends[:-1])
        chunks = tuple(
            PlannedChunk(f"chunk-{last}", "i" * 32, after, last, last - after)
            for after, last in zip(starts, ends, strict=True)
        )
        with self.change() as connection:
            streams.save_intent(connection, Intent(stream, starts[0], ends[-1], chunks))
            for chunk in chunks[:acked]:
                streams.acknowledge_chunk(connection, stream, chunk, chunk.rows)

    def buried(self, stream: StreamKey, letter_id: str, seq: int, body: bytes | None = None) -> None:
        letter = DeadLetter(letter_id, stream, "i" * 32, seq - 1, seq, 1, "too odd", "2026-11-15T07:00:00+00:00")
        with self.change() as connection:
            dead_letters.add_letter(connection, letter, body)

    def stream(self, stream: StreamKey) -> streams.Stream:
        with self.store() as store, store.reading() as connection:
            found = streams.load_stream(connection, stream)
        assert found is not None
        return found

    def intent(self, stream: StreamKey) -> Intent | None:
        with self.store() as store, store.reading() as connection:
            return streams.load_intent(connection, stream)

    def letters(self) -> list[str]:
        with self.store() as store, store.reading() as connection:
            return [letter.id for letter in dead_letters.list_letters(connection)]
