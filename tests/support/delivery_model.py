"""A model of a home with its lake, sinks and destinations. Each event is one step; the expected deliveries are computed
from the steps alone.

The destinations are files that are read without the sinks. The lake is a folder of Arrow files that provides what a
real one does when a state is rebuilt: its sources, its highest sequence and its identity.
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
from hypaware.export import destination_change, retry, round
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all, replay_letter
from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    Destination,
    Payload,
    RangeOverlap,
    Sink,
    SinkSettings,
    SinkType,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile, TableMetadata
from hypaware.state import dead_letters, mirror, recovery
from hypaware.state.home_opener import OpenHome, catch_up, open_home
from hypaware.state.recovery import LakeSummary
from hypaware.state.streams import StreamKey
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import Faults, run_in_child
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

if TYPE_CHECKING:
    import pyarrow as pa

    pass
    pass

QUERYABLE, CHECKS_OVERLAP, OPAQUE = "asked", "wary", "mute"
"""A destination that can be queried; one that also detects overlapping ranges; one that only knows ids."""
SOURCES = ("claude", "codex", "claude x")


class FileSink(Sink):
    """A sink that writes one file per chunk id: its range, its owner and its rows."""

    limits = ChunkLimits(rows=3, bytes=1 << 20)

    def __init__(self, settings: SinkSettings) -> None:
        self._folder = Path(settings.options["folder"])
        self._manner = settings.options["sink_ability"]
        self._name: str | None = settings.options.get("destination_id")

    async def open(self) -> Destination:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Destination(file_sink_address(self._folder), self._name)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        await asyncio.sleep(0)
        return None if self._manner == OPAQUE else self._path(chunk).exists()

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        if self._manner == OPAQUE:
            return None
        return self._covered([DATASET, stream.source, gateway_id, incarnation])

    def encode(self, rows: pa.Table) -> Payload:
        return TablePayload(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, TablePayload)
        owner = [chunk.stream.dataset, chunk.stream.source, chunk.gateway_id, chunk.incarnation]
        await asyncio.sleep(0)
        if self._path(chunk).exists():
            return 0
        if self._manner == CHECKS_OVERLAP and any(
            each["after"] < chunk.last and chunk.after < each["last"] for each in stored_chunks(self._folder, owner)
        ):
            raise RangeOverlap(self._covered(owner))
        columns = payload.table.select(["message_id", "content_text", "attributes"]).to_pylist()
        body = {
            "owner": owner,
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

    def _covered(self, owner: list[str]) -> StreamCoverage:
        return StreamCoverage.from_ranges((each["after"], each["last"]) for each in stored_chunks(self._folder, owner))

    def _path(self, chunk: Chunk) -> Path:
        return self._folder / f"{chunk.id}.json"


def file_sink_address(folder: Path) -> str:
    return f"file-sink:{folder}"


def stored_chunks(folder: Path, owner: list[str] | None = None) -> list[dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
    chosen = [each for each in found if owner is None or each["owner"] == owner]
    return sorted(chosen, key=lambda each: (each["after"], each["last"]))


FILE_SINK = SinkType(
    "file", "one file per chunk", lambda settings: file_sink_address(Path(settings.options["folder"])), FileSink
)


@dataclass
class Slot:
    """One sink from the user's point of view, under any name and with any destination."""

    name: str
    place: Path
    exempt: set[int] = field(default_factory=set)
    """Rows that may be missing at its current destination: they were sent elsewhere, or adopted."""
    pointed_elsewhere: bool = False
    """Whether it pointed elsewhere for a while without a decision; under a new name it was a new sink there."""

    @property
    def elsewhere(self) -> Path:
        return self.place.with_name(self.place.name[:-1] + ("b" if self.place.name.endswith("a") else "a"))


@dataclass
class DeliveryModel:
    folder: Path
    draw: random.Random
    sink_ability: str
    home: Home
    lake: SampleLake
    slots: list[Slot]
    sources: tuple[str, ...]
    named: bool
    rows: dict[int, str] = field(default_factory=dict)
    """Every row ever committed, with its source."""
    purged: set[int] = field(default_factory=set)
    may_repeat: dict[Path, set[int]] = field(default_factory=dict)
    """Rows that were resent to a destination that cannot be queried."""
    lost: bool = False
    """Whether state and mirror were once lost together."""
    before_rebuild: set[int] = field(default_factory=set)
    """Rows that existed when the state was last rebuilt."""
    copied: int = 0
    """Number of rows when state and mirror were copied."""
    pointed: list[Path] = field(default_factory=list)
    """Destinations of the sinks at that time."""
    _open: OpenHome | None = None
    steps: list[str] = field(default_factory=list)
    """The steps so far, to explain a failure."""

    # Steps

    def commit(self) -> None:
        first, count = len(self.rows), self.draw.randint(1, 14)
        fresh = {number: self.draw.choice(self.sources) for number in range(first, first + count)}
        with self.opened() as opened:
            self._store_identity(opened)
            self.lake.commit(opened, [sample_row(number, source) for number, source in fresh.items()])
            mirror.write_mirror(self.home.mirror, opened.store)
        self.rows |= fresh

    def deliver(self, names: list[str] | None = None, patient: bool = False) -> list[SinkReport]:
        wait = 1.0 if patient else self.draw.choice((0.0, 0.0, 0.01))
        budget = None if patient else self.draw.choice((None, None, 1, 2))
        return self._deliver(self.config, names, DeliveryOptions(wait, budget))

    def deliver_killed(self) -> None:
        self._add_detail(f"at {(point := self._point())}")
        run_in_child(lambda: self._discard(self.deliver()), point)

    def deliver_twice_at_once(self) -> None:
        self._add_detail(f"at {(point := self._point())}")
        with concurrent(lambda: self._discard(self._deliver(self.config, None, DeliveryOptions(5.0))), point):
            self._deliver(self.config, None, DeliveryOptions(5.0))

    def deliver_cancelled(self) -> None:
        turns = self.draw.randint(1, 120)

        async def cancelled() -> None:
            with self.opened() as opened:
                driver = Driver(opened, self.config, self.lake, DeliveryOptions(0.01))
                task = asyncio.create_task(gather_all(map(driver.deliver, self.config.sinks)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        asyncio.run(cancelled())

    def inject_faults(self) -> None:
        kind = self.draw.choice(("lose_answer", "lose_answer", "cut", "busy", "refuse", "refuse"))
        value: str | int = self.draw.randint(1, 3)
        if kind == "refuse":
            # Mostly rows of pending chunks.
            known = range(max(0, len(self.rows) - self.draw.choice((8, 16, 99))), len(self.rows) + 4)
            value = "\n".join(f"message-{number}" for number in self.draw.sample(known, self.draw.randint(1, 4)))
        self._add_detail(f"{kind} {value!r}")
        self.faults.set(kind, value)

    def clear_faults(self) -> None:
        self.faults.clear()

    def compact(self) -> None:
        self.lake.compact()

    def purge(self) -> None:
        left = sorted(self.rows.keys() - self.purged)
        removed = self.draw.sample(left, min(len(left), self.draw.choice((1, 3, 30))))
        self.lake.purge([f"message-{number}" for number in removed])
        self.purged |= set(removed)

    def lose_state(self) -> None:
        self._remove_state()
        self._mark_rebuilt()

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
            self._mark_rebuilt()

    def restore_both(self) -> None:
        """Restore an earlier copy of state and mirror: only the lake shows that it is old."""
        if (copy := self.folder / "copy.db").exists() and self.copied < len(self.rows):
            self._remove_state()
            shutil.copy(copy, self.home.state)
            shutil.copy(self.folder / "copy.json", self.home.mirror)
            self.lost = True
            for slot, place in zip(self.slots, self.pointed, strict=True):
                # Later decisions of the user are lost too.
                slot.pointed_elsewhere |= slot.place != place
            with self.opened() as opened:
                self._open = catch_up(self.home, opened.store, "as an engine does when it starts")
            self._mark_rebuilt()

    def lose_mirror(self) -> None:
        self.close()
        self.home.mirror.unlink(missing_ok=True)
        with self.opened():
            pass

    def lose_both(self) -> None:
        self._remove_state()
        self.home.mirror.unlink(missing_ok=True)
        self.lost = True
        self._mark_rebuilt()

    def replay(self) -> None:
        with self.opened() as opened:
            with opened.store.reading() as connection:
                letters = dead_letters.list_letters(connection)
            driver = Driver(opened, self.config, self.lake, DeliveryOptions(0.01))
            for letter in letters:
                if letter.key.sink in self.config.sinks:
                    asyncio.run(replay_letter(driver, letter.id))

    def replay_killed(self) -> None:
        self._add_detail(f"at {(point := self._point('export.replay'))}")
        run_in_child(self.replay, point)

    def rename(self) -> None:
        slot = self.draw.choice(self.slots)
        if len(self.slots) > 1 and self.draw.random() < 0.3:
            first, second = self.slots
            first.name, second.name = second.name, first.name
            self._add_detail("both, to each other's names")
            self.deliver_killed()
        else:
            slot.name = self.draw.choice([name for name in "abcd" if name not in self.config.sinks])
            self._add_detail(f"to {slot.name}")
        # Before another sink points elsewhere too: then they could no longer be steps apart.
        for _ in self.slots[1:]:
            self.deliver()
            self.deliver()

    def add_second_sink(self) -> None:
        """Add a second sink to the same destination for a while; it must not send the rows of the first one."""
        slot = self.draw.choice(self.slots)
        config = self.config
        names = [slot.name, f"add_second_sink-of-{slot.name}"]
        self.draw.shuffle(names)
        both = Config(sinks={**config.sinks, f"add_second_sink-of-{slot.name}": config.sinks[slot.name]})
        with suppress(HypError):
            self._deliver(both, names, DeliveryOptions(0.01))

    def point_elsewhere(self) -> None:
        slot = self.draw.choice(self.slots)
        was = slot.place
        slot.place = slot.elsewhere
        if self.draw.random() < 0.7:
            self.deliver()
        if self.draw.random() < 0.2:
            slot.place, slot.pointed_elsewhere = was, True
        elif self.draw.random() < 0.5:
            self._add_detail("adopt")
            self._adopt(slot, was)
        else:
            self._add_detail("resend")
            self._resend(slot)

    def decide(self) -> None:
        """Adopt or resend the held sinks."""
        for slot, report in zip(self.slots, self.deliver(patient=True), strict=True):
            if any(stream.held for stream in report.streams):
                if self.draw.random() < 0.6:
                    self._add_detail(f"adopt {slot.name}")
                    self._adopt(slot, slot.place)
                else:
                    self._add_detail(f"resend {slot.name}")
                    self._resend(slot)

    def resend(self) -> None:
        self._resend(self.draw.choice(self.slots))

    # Final checks

    def clear_and_deliver(self) -> None:
        """Clear all faults and deliver everything; streams stay held only if their outcome cannot be known."""
        self.faults.clear()
        for _ in range(20):
            reports = self.deliver(patient=True)
            for slot, report in zip(self.slots, reports, strict=True):
                if any(stream.held for stream in report.streams):
                    assert self.sink_ability == OPAQUE or slot.pointed_elsewhere, (
                        f"held though it can be asked: {report.as_json()}"
                    )
                    self._add_detail(f"adopt {slot.name} in the end")
                    self._adopt(slot, slot.place)
            if all(report.status == "ok" for report in reports):
                break
        else:
            raise AssertionError(f"it never ends: {[report.as_json() for report in reports]}")
        self.replay()
        with self.opened() as opened, opened.store.reading() as connection:
            letters = dead_letters.list_letters(connection)
        left = [letter for letter in letters if letter.key.sink in self.config.sinks]
        assert not left, f"dead letters are left: {left}"

    def check(self) -> None:
        for place in sorted(self.folder.glob("place-*")):
            chunks = stored_chunks(place)
            arrived = Counter(int(row[0].removeprefix("message-")) for chunk in chunks for row in chunk["rows"])
            assert arrived.keys() <= self.rows.keys(), "rows that were never committed"
            twice = {number for number, times in arrived.items() if times > 1} - self.may_repeat.get(place, set())
            assert not twice, f"{place.name} has rows twice: {sorted(twice)}"
            for chunk in chunks:
                for message, text, attributes in chunk["rows"]:
                    number = int(message.removeprefix("message-"))
                    assert (text, json.loads(attributes)["n"]) == (f"text {number}", number)
                    assert chunk["owner"][1] == self.rows[number], "a row of another stream"
            if place not in self.may_repeat:
                _check_ranges(chunks)
        for slot in self.slots:
            arrived = Counter(
                int(row[0].removeprefix("message-")) for chunk in stored_chunks(slot.place) for row in chunk["rows"]
            )
            missing = self.rows.keys() - self.purged - slot.exempt - arrived.keys()
            assert not missing, f"{slot.place.name} lacks {sorted(missing)}"

    # Parts of the steps

    @property
    def config(self) -> Config:
        def sink(slot: Slot) -> SinkConfig:
            options = {"folder": str(slot.place), "sink_ability": self.sink_ability}
            if self.named:
                options["destination_id"] = slot.place.name
            return SinkConfig(FILE_SINK.name, "* * * * *", (DATASET,), options)

        return Config(sinks={slot.name: sink(slot) for slot in self.slots})

    @property
    def faults(self) -> Faults:
        return Faults(self.folder / "faults")

    @contextmanager
    def opened(self) -> Iterator[OpenHome]:
        """Return the open home, kept open until its files change."""
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

    def _deliver(self, config: Config, names: list[str] | None, terms: DeliveryOptions) -> list[SinkReport]:
        with self.opened() as opened:
            self._store_identity(opened)
            driver = Driver(opened, config, self.lake, terms)
            return asyncio.run(gather_all(map(driver.deliver, names or config.sinks)))

    def _adopt(self, slot: Slot, was: Path) -> None:
        self._deliver(self.config, [slot.name], DeliveryOptions(0.0))
        if was != slot.place or slot.pointed_elsewhere:
            slot.exempt |= self._arrived(slot.elsewhere)
        if self.lost and self.sink_ability == OPAQUE:
            slot.exempt |= self.before_rebuild
        with self.opened() as opened:
            destination_change.adopt(self.home, self.config, opened.store, slot.name)

    def _resend(self, slot: Slot) -> None:
        self._deliver(self.config, [slot.name], DeliveryOptions(0.0))
        slot.exempt = set()
        if self.sink_ability == OPAQUE:
            self.may_repeat.setdefault(slot.place, set()).update(self._arrived(slot.place))
        with self.opened() as opened:
            destination_change.resend(self.home, self.config, opened.store, slot.name)

    def _arrived(self, place: Path) -> set[int]:
        return {int(row[0].removeprefix("message-")) for chunk in stored_chunks(place) for row in chunk["rows"]}

    def _store_identity(self, opened: OpenHome) -> None:
        """Store the identity in the lake, as an engine does first."""
        known = opened.identity
        steps = {
            metadata.GATEWAY_ID_PROPERTY: known.gateway_id,
            metadata.INCARNATION_PROPERTY: known.incarnation,
            metadata.PARENTS_PROPERTY: ",".join(known.parents),
            metadata.FORKS_PROPERTY: ",".join(map(str, known.forks)),
        }
        (self.folder / "properties").write_text(json.dumps(steps))

    def facts(self, _home: Home) -> LakeSummary:
        if not (steps := self.folder / "properties").exists() or not self.rows:
            return LakeSummary({}, 0)
        table = TableMetadata(self.folder, "", json.loads(steps.read_bytes()), (), None, (), {})
        return LakeSummary({DATASET: table}, len(self.rows))

    def files(self, _table: TableMetadata) -> Iterator[DataFile]:
        for source in sorted(set(self.rows.values())):
            last = max(number for number, of in self.rows.items() if of == source) + 1
            yield DataFile(self.folder, 0, 0, source, last, None, 0)

    def _mark_rebuilt(self) -> None:
        self.before_rebuild = set(self.rows)

    def _remove_state(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self.home.state.with_name(self.home.state.name + suffix).unlink(missing_ok=True)

    def _point(self, prefix: str = "") -> str:
        points = [
            each.name for each in faults.declared_points() if each.name.startswith(prefix or ("export.", "state."))
        ]
        return f"{self.draw.choice([each for each in points if '.sinks' not in each])}:{self.draw.randint(1, 6)}"

    def _discard(self, _result: object) -> None:
        return None

    def _add_detail(self, what: str) -> None:
        self.steps[-1] += f" {what}"


def _check_ranges(chunks: list[dict[str, Any]]) -> None:
    last: dict[tuple[str, ...], int] = {}
    for chunk in chunks:
        owner = tuple(chunk["owner"])
        assert chunk["after"] >= last.get(owner, 0), f"ranges overlap: {chunk}"
        last[owner] = chunk["last"]


@contextmanager
def concurrent(work: Callable[[], None], crash_at: str | None) -> Iterator[None]:
    """Run the work in another process at the same time."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _run_in_child(work, crash_at) else 70)
    try:
        yield
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -9), f"the other process ended with {code}"


def _run_in_child(work: Callable[[], None], crash_at: str | None) -> bool:
    try:
        with faults.arm(crash_at):
            work()
    except BaseException:
        import traceback

        traceback.print_exc()
        return False
    return True


@contextmanager
def delivery_model(folder: Path, seed: int) -> Iterator[DeliveryModel]:
    draw = random.Random(seed)
    sink_ability = draw.choice((QUERYABLE, CHECKS_OVERLAP, OPAQUE))
    slots = [Slot(name, folder / f"place-{name}-a") for name in "ab"[: draw.choice((1, 1, 2))]]
    model = DeliveryModel(
        folder, draw, sink_ability, Home(folder / "home"), SampleLake(folder / "lake", draw.choice((1, 4, 7, 100))),
        slots, SOURCES[: draw.randint(1, 3)], draw.random() < 0.5,
    )  # fmt: skip
    with ExitStack() as patched:
        patched.enter_context(fault_injection.register_kind(fault_injection.wrap_kind(FILE_SINK, folder / "faults")))
        patched.enter_context(mock.patch.object(recovery, "summarize_lake", model.facts))
        patched.enter_context(mock.patch.object(metadata, "iter_live_files", model.files))
        # Shorter delays and a lower limit of refusals.
        patched.enter_context(mock.patch.object(retry, "backoff_delay", lambda failures: min(2.0**failures, 300) / 1e4))
        patched.enter_context(mock.patch.object(round, "MAX_LETTERS_PER_ROUND", draw.choice((2, 100))))
        try:
            yield model
        finally:
            model.close()
