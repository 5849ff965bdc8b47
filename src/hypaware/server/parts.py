"""The components of a running server, created and closed in the right order."""

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

# The signals of the published contract and their datasets. Its other signals have no dataset yet.
SIGNALS = {"proxy": "ai_gateway_messages"}


@dataclass
class Parts:
    home: Home
    store: Store
    server_id: str
    limits: Limits
    auth: Access
    receiver: Receiver
    metrics: Meters
    health: Trouble
    signals: dict[str, Dataset]
    body_memory: Room
    concurrency: AtOnce
    request_rate: Pace
    enrolment_rate: Pace
    in_flight: UnderWay = field(default_factory=UnderWay)
    draining: bool = False

    def probe_storage(self) -> None:
        for dataset in self.signals.values():
            folder = incoming.folder_of(segments.folder(self.home, dataset.name))
            self.health.probe(self.store, folder, self.limits.keep_free_bytes)

    def close(self) -> None:
        """Finish every batch that was received, then close the store."""
        self.receiver.close()
        self.store.close()


def assemble(home_open: OpenHome, limits: Limits, *, refresh_seconds: float = 1.0) -> Parts:
    home, store = home_open.home, home_open.store
    metrics, health = Meters(), Trouble()
    signals = {signal: datasets.get(name) for signal, name in SIGNALS.items()}
    folders = {dataset.name: incoming.create(home, dataset.name) for dataset in signals.values()}
    server_id, signer = signing.server_id(home), Signer(signing.signing_key(home))
    commit = GroupCommit(store, metrics, health, limits.keep_free_bytes)
    metrics.watch("hyp_server_waiting_batches", "Durable batches waiting for their commit", lambda: commit.waiting)
    body_memory = Room(limits.held_bytes)
    metrics.watch("hyp_server_held_bytes", "Bytes of request bodies in memory", lambda: body_memory.reserved)
    return Parts(
        home=home,
        store=store,
        server_id=server_id,
        limits=limits,
        auth=Access(store, signer, refresh_seconds=refresh_seconds),
        receiver=Receiver(store, folders, commit, limits, health),
        metrics=metrics,
        health=health,
        signals=signals,
        body_memory=body_memory,
        concurrency=AtOnce(limits.requests_at_once),
        request_rate=Pace(limits.requests_per_second, 2 * limits.requests_per_second),
        enrolment_rate=Pace(limits.enrolments_per_minute / 60, limits.enrolments_per_minute),
    )
