"""A home, its lake, its sinks and their destinations, and what may befall them, each as one step; with the books of
what must be where, kept from the steps alone.

The destinations are files of their own, read without the sinks. The lake is a folder of Arrow files that tells what a
real one tells when a state is rebuilt: its sources, its highest sequence, and whose it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypaware import faults
from hypaware.config.schema import Config, SinkConfig
from hypaware.errors import HypError
from hypaware.export import binding, configured, replay, shipping, waiting
from hypaware.export.driver import Driver, Terms
from hypaware.export.payload import Rows
from hypaware.export.report import SinkReport
from hypaware.export.sink import Chunk, Delivered, Destination, Limits, Overlap, Sink, SinkSettings, SinkType
from hypaware.home import Home
from hypaware.lake import metadata, rebuild
from hypaware.lake.metadata import DataFile, Metadata
from hypaware.lake.rebuild import LakeFacts
from hypaware.opening import OpenHome, catch_up, open_home
from hypaware.state import dead_letters, mirror
from hypaware.testing import between
from hypaware.testing.between import Between
from hypaware.testing.lives import live
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.payload import Payload
    from hypaware.state.stream_key import StreamKey

ASKED, WARY, MUTE = "asked", "wary", "mute"
"""A destination that can be asked; one that also sees for itself that ranges overlap; one that only knows ids."""
SOURCES = ("claude", "codex", "claude x")


class Shelf(Sink):
    """One file per chunk id: its range, whose it is, and what its rows say."""

    limits = Limits(rows=3, bytes=1 << 20)

    def __init__(self, settings: SinkSettings) -> None:
        self._folder = Path(settings.options["folder"])
        self._manner = settings.options["manner"]
        self._name: str | None = settings.options.get("calls_itself")

    async def open(self) -> Destination:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Destination(shelf_address(self._folder), self._name)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        await asyncio.sleep(0)
        return None if self._manner == MUTE else self._path(chunk).exists()

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        if self._manner == MUTE:
            return None
        return self._covered([DATASET, stream.source, gateway_id, incarnation])

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        whose = [chunk.stream.dataset, chunk.stream.source, chunk.gateway_id, chunk.incarnation]
        await asyncio.sleep(0)
        if self._path(chunk).exists():
            return 0
        if self._manner == WARY and any(
            each["after"] < chunk.last and chunk.after < each["last"] for each in shelved(self._folder, whose)
        ):
            raise Overlap(self._covered(whose))
        columns = payload.table.select(["message_id", "content_text", "attributes"]).to_pylist()
        body = {
            "whose": whose,
            "after": chunk.after,
            "last": chunk.last,
            "rows": [list(row.values()) for row in columns],
        }
        written = self._folder / f"{os.getpid()}.tmp"
        written.write_text(json.dumps(body))
        with suppress(FileExistsError):
            os.link(written, self._path(chunk))
        written.unlink()
        return len(columns)

    async def close(self) -> None:
        await asyncio.sleep(0)

    def _covered(self, whose: list[str]) -> Delivered:
        last, holes = 0, []
        for held in shelved(self._folder, whose):
            if held["after"] > last:
                holes.append((last, held["after"]))
            last = max(last, held["last"])
        return Delivered(last, tuple(holes))

    def _path(self, chunk: Chunk) -> Path:
        return self._folder / f"{chunk.id}.json"


def shelf_address(folder: Path) -> str:
    return f"shelf:{folder}"


def shelved(folder: Path, whose: list[str] | None = None) -> list[dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
    chosen = [each for each in found if whose is None or each["whose"] == whose]
    return sorted(chosen, key=lambda each: (each["after"], each["last"]))


SHELF = SinkType("shelf", "a shelf", lambda settings: shelf_address(Path(settings.options["folder"])), Shelf)


@dataclass
class Slot:
    """What the user takes for one sink, whatever it is called and wherever it points."""

    name: str
    place: Path
    spared: set[int] = field(default_factory=set)
    """Rows that need not be where it points now: they went elsewhere before, or the user took them as delivered."""
    wavered: bool = False
    """Whether it pointed elsewhere for a while and nobody decided on it; under a new name it was a new sink there."""

    @property
    def elsewhere(self) -> Path:
        return self.place.with_name(self.place.name[:-1] + ("b" if self.place.name.endswith("a") else "a"))


@dataclass
class World:
    folder: Path
    draw: random.Random
    manner: str
    home: Home
    lake: SampleLake
    slots: list[Slot]
    sources: tuple[str, ...]
    named: bool
    rows: dict[int, str] = field(default_factory=dict)
    """Every row that was ever committed, with its source."""
    purged: set[int] = field(default_factory=set)
    doubled: dict[Path, set[int]] = field(default_factory=dict)
    """Rows that the user wanted sent again to a destination that nobody can ask."""
    lost: bool = False
    """Whether state and side file were once lost together."""
    before_birth: set[int] = field(default_factory=set)
    """Rows that were there when the state last had to be rebuilt."""
    copied: int = 0
    """How many rows there were when state and side file were copied."""
    pointed: list[Path] = field(default_factory=list)
    """And where the sinks pointed then."""
    _open: OpenHome | None = None
    told: list[str] = field(default_factory=list)
    """The steps so far, for whoever has to find out what went wrong."""

    # Steps

    def commit(self) -> None:
        first, count = len(self.rows), self.draw.randint(1, 14)
        fresh = {number: self.draw.choice(self.sources) for number in range(first, first + count)}
        with self.opened() as opened:
            self._remember(opened)
            self.lake.commit(opened, [sample_row(number, source) for number, source in fresh.items()])
            mirror.write(self.home.mirror, opened.store)
        self.rows |= fresh

    def deliver(self, names: list[str] | None = None, patient: bool = False) -> list[SinkReport]:
        wait = 1.0 if patient else self.draw.choice((0.0, 0.0, 0.01))
        budget = None if patient else self.draw.choice((None, None, 1, 2))
        return self._deliver(self.config, names, Terms(wait, budget))

    def deliver_killed(self) -> None:
        self._told_more(f"at {(point := self._point())}")
        live(lambda: self._discard(self.deliver()), point)

    def deliver_twice_at_once(self) -> None:
        self._told_more(f"at {(point := self._point())}")
        with concurrent(lambda: self._discard(self._deliver(self.config, None, Terms(5.0))), point):
            self._deliver(self.config, None, Terms(5.0))

    def deliver_cancelled(self) -> None:
        turns = self.draw.randint(1, 120)

        async def cancelled() -> None:
            with self.opened() as opened:
                driver = Driver(opened, self.config, self.lake, Terms(0.01))
                task = asyncio.create_task(driver.deliver(list(self.config.sinks)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        asyncio.run(cancelled())

    def trouble(self) -> None:
        kind = self.draw.choice(("lose_answer", "lose_answer", "cut", "busy", "refuse", "refuse"))
        value: str | int = self.draw.randint(1, 3)
        if kind == "refuse":
            # Mostly of those that may be on their way.
            known = range(max(0, len(self.rows) - self.draw.choice((8, 16, 99))), len(self.rows) + 4)
            value = "\n".join(f"message-{number}" for number in self.draw.sample(known, self.draw.randint(1, 4)))
        self._told_more(f"{kind} {value!r}")
        self.between.set(kind, value)

    def calm(self) -> None:
        self.between.clear()

    def rewrite(self) -> None:
        self.lake.compact()

    def purge(self) -> None:
        left = sorted(self.rows.keys() - self.purged)
        gone = self.draw.sample(left, min(len(left), self.draw.choice((1, 3, 30))))
        self.lake.purge([f"message-{number}" for number in gone])
        self.purged |= set(gone)

    def lose_state(self) -> None:
        self._remove_state()
        self._reborn()

    def copy_state(self) -> None:
        with self.opened():
            with (
                closing(sqlite3.connect(self.home.state)) as source,
                closing(sqlite3.connect(self.folder / "copy.db")) as target,
            ):
                source.backup(target)
            shutil.copy(self.home.mirror, self.folder / "copy.json")
            self.copied, self.pointed = len(self.rows), [slot.place for slot in self.slots]

    def restore_state(self) -> None:
        if (copy := self.folder / "copy.db").exists():
            self._remove_state()
            shutil.copy(copy, self.home.state)
            self._reborn()

    def restore_both(self) -> None:
        """State and side file from an earlier copy: only the lake can tell, by what was committed since."""
        if (copy := self.folder / "copy.db").exists() and self.copied < len(self.rows):
            self._remove_state()
            shutil.copy(copy, self.home.state)
            shutil.copy(self.folder / "copy.json", self.home.mirror)
            self.lost = True
            for slot, place in zip(self.slots, self.pointed, strict=True):
                # What its user decided since is forgotten too.
                slot.wavered |= slot.place != place
            with self.opened() as opened:
                self._open = catch_up(self.home, opened.store, "as an engine does when it starts")
            self._reborn()

    def lose_side_file(self) -> None:
        self.close()
        self.home.mirror.unlink(missing_ok=True)
        with self.opened():
            pass

    def lose_both(self) -> None:
        self._remove_state()
        self.home.mirror.unlink(missing_ok=True)
        self.lost = True
        self._reborn()

    def replay(self) -> None:
        with self.opened() as opened:
            with opened.store.reading() as connection:
                letters = dead_letters.all_letters(connection)
            driver = Driver(opened, self.config, self.lake, Terms(0.01))
            for letter in letters:
                if letter.key.sink in self.config.sinks:
                    asyncio.run(replay.replay(driver, letter.id))

    def replay_killed(self) -> None:
        self._told_more(f"at {(point := self._point('export.replay'))}")
        live(self.replay, point)

    def rename(self) -> None:
        slot = self.draw.choice(self.slots)
        if len(self.slots) > 1 and self.draw.random() < 0.3:
            first, second = self.slots
            first.name, second.name = second.name, first.name
            self._told_more("both, to each other's names")
            self.deliver_killed()
        else:
            slot.name = self.draw.choice([name for name in "abcd" if name not in self.config.sinks])
            self._told_more(f"to {slot.name}")
        # Before one of several points elsewhere too: then nobody could tell any more which one it was.
        for _ in self.slots[1:]:
            self.deliver()
            self.deliver()

    def twin(self) -> None:
        """A second sink to the same place, for a while: it must not send what the first one sends."""
        slot = self.draw.choice(self.slots)
        config = self.config
        names = [slot.name, f"twin-of-{slot.name}"]
        self.draw.shuffle(names)
        both = Config(sinks={**config.sinks, f"twin-of-{slot.name}": config.sinks[slot.name]})
        with suppress(HypError):
            self._deliver(both, names, Terms(0.01))

    def point_elsewhere(self) -> None:
        slot = self.draw.choice(self.slots)
        was = slot.place
        slot.place = slot.elsewhere
        if self.draw.random() < 0.7:
            self.deliver()
        if self.draw.random() < 0.2:
            slot.place, slot.wavered = was, True
        elif self.draw.random() < 0.5:
            self._told_more("adopt")
            self._adopt(slot, was)
        else:
            self._told_more("resend")
            self._resend(slot)

    def decide(self) -> None:
        """The user decides on sinks that wait for it."""
        for slot, report in zip(self.slots, self.deliver(patient=True), strict=True):
            if any(stream.held for stream in report.streams):
                if self.draw.random() < 0.6:
                    self._told_more(f"adopt {slot.name}")
                    self._adopt(slot, slot.place)
                else:
                    self._told_more(f"resend {slot.name}")
                    self._resend(slot)

    def resend(self) -> None:
        self._resend(self.draw.choice(self.slots))

    # The end

    def settle(self) -> None:
        """Nothing is wrong any more: all is delivered, or held where nobody can know."""
        self.between.clear()
        for _ in range(20):
            reports = self.deliver(patient=True)
            for slot, report in zip(self.slots, reports, strict=True):
                if any(stream.held for stream in report.streams):
                    assert self.manner == MUTE or slot.wavered, f"held though it can be asked: {report.as_json()}"
                    self._told_more(f"adopt {slot.name} in the end")
                    self._adopt(slot, slot.place)
            if all(report.status == "ok" for report in reports):
                break
        else:
            raise AssertionError(f"it never ends: {[report.as_json() for report in reports]}")
        self.replay()
        with self.opened() as opened, opened.store.reading() as connection:
            letters = dead_letters.all_letters(connection)
        left = [letter for letter in letters if letter.key.sink in self.config.sinks]
        assert not left, f"dead letters are left: {left}"

    def check(self) -> None:
        for place in sorted(self.folder.glob("place-*")):
            chunks = shelved(place)
            arrived = Counter(int(row[0].removeprefix("message-")) for chunk in chunks for row in chunk["rows"])
            assert arrived.keys() <= self.rows.keys(), "rows that nobody committed"
            twice = {number for number, times in arrived.items() if times > 1} - self.doubled.get(place, set())
            assert not twice, f"{place.name} has rows twice: {sorted(twice)}"
            for chunk in chunks:
                for message, text, attributes in chunk["rows"]:
                    number = int(message.removeprefix("message-"))
                    assert (text, json.loads(attributes)["n"]) == (f"text {number}", number)
                    assert chunk["whose"][1] == self.rows[number], "a row of another stream"
            if place not in self.doubled:
                _check_ranges(chunks)
        for slot in self.slots:
            arrived = Counter(
                int(row[0].removeprefix("message-")) for chunk in shelved(slot.place) for row in chunk["rows"]
            )
            missing = self.rows.keys() - self.purged - slot.spared - arrived.keys()
            assert not missing, f"{slot.place.name} lacks {sorted(missing)}"

    # What the steps are made of

    @property
    def config(self) -> Config:
        def sink(slot: Slot) -> SinkConfig:
            options = {"folder": str(slot.place), "manner": self.manner}
            if self.named:
                options["calls_itself"] = slot.place.name
            return SinkConfig(SHELF.name, "* * * * *", (DATASET,), options)

        return Config(sinks={slot.name: sink(slot) for slot in self.slots})

    @property
    def between(self) -> Between:
        return Between(self.folder / "faults")

    @contextmanager
    def opened(self) -> Iterator[OpenHome]:
        """As a daemon has it: open until somebody meddles with its files."""
        self._open = self._open or open_home(self.home)
        yield self._open

    def close(self) -> None:
        if self._open:
            self._open.store.close()
            self._open = None

    def watermarks(self) -> dict[tuple[str, str], int]:
        with self.opened(), closing(sqlite3.connect(self.home.state)) as state:
            found = state.execute("SELECT sink, source, coalesce(watermark, 0) FROM streams").fetchall()
        return {(sink, source): watermark for sink, source, watermark in found}

    def _deliver(self, config: Config, names: list[str] | None, terms: Terms) -> list[SinkReport]:
        with self.opened() as opened:
            self._remember(opened)
            return asyncio.run(Driver(opened, config, self.lake, terms).deliver(names or list(config.sinks)))

    def _adopt(self, slot: Slot, was: Path) -> None:
        self._deliver(self.config, [slot.name], Terms(0.0))
        if was != slot.place or slot.wavered:
            slot.spared |= self._arrived(slot.elsewhere)
        if self.lost and self.manner == MUTE:
            slot.spared |= self.before_birth
        with self.opened() as opened:
            binding.adopt(self.home, self.config, opened.store, slot.name)

    def _resend(self, slot: Slot) -> None:
        self._deliver(self.config, [slot.name], Terms(0.0))
        slot.spared = set()
        if self.manner == MUTE:
            self.doubled.setdefault(slot.place, set()).update(self._arrived(slot.place))
        with self.opened() as opened:
            binding.resend(self.home, self.config, opened.store, slot.name)

    def _arrived(self, place: Path) -> set[int]:
        return {int(row[0].removeprefix("message-")) for chunk in shelved(place) for row in chunk["rows"]}

    def _remember(self, opened: OpenHome) -> None:
        """As an engine does before anything else: the lake knows whose it is."""
        known = opened.identity
        told = {
            metadata.GATEWAY_ID: known.gateway_id,
            metadata.INCARNATION: known.incarnation,
            metadata.PARENTS: ",".join(known.parents),
            metadata.FORKS: ",".join(map(str, known.forks)),
        }
        (self.folder / "properties").write_text(json.dumps(told))

    def facts(self, _home: Home) -> LakeFacts:
        if not (told := self.folder / "properties").exists() or not self.rows:
            return LakeFacts({}, 0)
        table = Metadata(self.folder, "", json.loads(told.read_bytes()), (), None, (), {})
        return LakeFacts({DATASET: table}, len(self.rows))

    def files(self, _table: Metadata) -> Iterator[DataFile]:
        for source in sorted(set(self.rows.values())):
            last = max(number for number, of in self.rows.items() if of == source) + 1
            yield DataFile(self.folder, 0, 0, source, last, None, 0)

    def _reborn(self) -> None:
        self.before_birth = set(self.rows)

    def _remove_state(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self.home.state.with_name(self.home.state.name + suffix).unlink(missing_ok=True)

    def _point(self, prefix: str = "") -> str:
        points = [each.name for each in faults.declared() if each.name.startswith(prefix or ("export.", "state."))]
        return f"{self.draw.choice([each for each in points if '.sinks' not in each])}:{self.draw.randint(1, 6)}"

    def _discard(self, _result: object) -> None:
        return None

    def _told_more(self, what: str) -> None:
        self.told[-1] += f" {what}"


def _check_ranges(chunks: list[dict[str, Any]]) -> None:
    last: dict[tuple[str, ...], int] = {}
    for chunk in chunks:
        whose = tuple(chunk["whose"])
        assert chunk["after"] >= last.get(whose, 0), f"ranges overlap: {chunk}"
        last[whose] = chunk["last"]


@contextmanager
def concurrent(work: Callable[[], None], crash_at: str | None) -> Iterator[None]:
    """The work in another process, meanwhile."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _survives(work, crash_at) else 70)
    try:
        yield
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -9), f"the other process ended with {code}"


def _survives(work: Callable[[], None], crash_at: str | None) -> bool:
    try:
        with faults.armed(crash_at):
            work()
    except BaseException:
        import traceback

        traceback.print_exc()
        return False
    return True


@contextmanager
def world(folder: Path, seed: int) -> Iterator[World]:
    draw = random.Random(seed)
    manner = draw.choice((ASKED, WARY, MUTE))
    slots = [Slot(name, folder / f"place-{name}-a") for name in "ab"[: draw.choice((1, 1, 2))]]
    made = World(
        folder, draw, manner, Home(folder / "home"), SampleLake(folder / "lake", draw.choice((1, 4, 7, 100))), slots,
        SOURCES[: draw.randint(1, 3)], draw.random() < 0.5,
    )  # fmt: skip
    with ExitStack() as patched:
        patched.enter_context(configured.also(between.wrapped(SHELF, folder / "faults")))
        patched.enter_context(mock.patch.object(rebuild, "read_facts", made.facts))
        patched.enter_context(mock.patch.object(metadata, "live_files", made.files))
        # Time runs faster here, and a round has enough sooner.
        patched.enter_context(
            mock.patch.object(waiting, "after_silence", lambda failures: min(2.0**failures, 300) / 1e4)
        )
        patched.enter_context(mock.patch.object(shipping, "MOST_LETTERS", draw.choice((2, 100))))
        try:
            yield made
        finally:
            made.close()
