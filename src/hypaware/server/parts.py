"""What a running server is made of, put together and taken apart in the right order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome
from hypaware.server import incoming, signing
from hypaware.server.access import Access
from hypaware.server.group_commit import GroupCommit
from hypaware.server.limits import Limits
from hypaware.server.meters import Meters
from hypaware.server.receiving import Receiver
from hypaware.server.signing import Signer
from hypaware.server.throttle import AtOnce, Pace, Room, UnderWay
from hypaware.server.trouble import Trouble
from hypaware.spool import segments
from hypaware.state.store import Store

# What the published contract calls them. Its other signals have no dataset yet.
SIGNALS = {"proxy": "ai_gateway_messages"}


@dataclass
class Parts:
    home: Home
    store: Store
    server_id: str
    limits: Limits
    access: Access
    receiver: Receiver
    meters: Meters
    trouble: Trouble
    signals: dict[str, Dataset]
    room: Room
    at_once: AtOnce
    pace: Pace
    enrolments: Pace
    under_way: UnderWay = field(default_factory=UnderWay)
    draining: bool = False

    def look_again(self) -> None:
        for dataset in self.signals.values():
            folder = incoming.folder_of(segments.folder(self.home, dataset.name))
            self.trouble.look_again(self.store, folder, self.limits.keep_free_bytes)

    def close(self) -> None:
        """Finishes every batch that was taken."""
        self.receiver.close()
        self.store.close()


def assemble(opened: OpenHome, limits: Limits, *, look_every: float = 1.0) -> Parts:
    home, store = opened.home, opened.store
    meters, trouble = Meters(), Trouble()
    signals = {signal: datasets.get(name) for signal, name in SIGNALS.items()}
    folders = {dataset.name: incoming.create(home, dataset.name) for dataset in signals.values()}
    server_id, signer = signing.server_id(home), Signer(signing.signing_key(home))
    commit = GroupCommit(store, meters, trouble, limits.keep_free_bytes)
    meters.watch("hyp_server_waiting_batches", "Durable batches that wait for their commit", lambda: commit.waiting)
    room = Room(limits.held_bytes)
    meters.watch("hyp_server_held_bytes", "Bytes of bodies in memory", lambda: room.taken)
    return Parts(
        home=home,
        store=store,
        server_id=server_id,
        limits=limits,
        access=Access(store, signer, look_every=look_every),
        receiver=Receiver(store, folders, commit, limits, trouble),
        meters=meters,
        trouble=trouble,
        signals=signals,
        room=room,
        at_once=AtOnce(limits.requests_at_once),
        pace=Pace(limits.requests_per_second, 2 * limits.requests_per_second),
        enrolments=Pace(limits.enrolments_per_minute / 60, limits.enrolments_per_minute),
    )
