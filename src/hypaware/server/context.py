"""The components of a running server, created and closed in the right order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.server import auth, batches
from hypaware.server.auth import Authenticator, TokenSigner
from hypaware.server.group_commit import GroupCommit
from hypaware.server.health import ServerMetrics, StorageHealth
from hypaware.server.limits import ByteBudget, ConcurrencyLimit, InFlight, RateLimiter, ServerLimits
from hypaware.server.receive import BatchReceiver
from hypaware.spool import segments
from hypaware.state.home_opener import OpenHome
from hypaware.state.store import StateStore

# The signals of the published contract and their datasets. Its other signals have no dataset yet.
SIGNALS = {"proxy": "ai_gateway_messages"}


@dataclass
class ServerContext:
    home: Home
    store: StateStore
    server_id: str
    limits: ServerLimits
    auth: Authenticator
    receiver: BatchReceiver
    metrics: ServerMetrics
    health: StorageHealth
    signals: dict[str, Dataset]
    body_memory: ByteBudget
    concurrency: ConcurrencyLimit
    request_rate: RateLimiter
    enrolment_rate: RateLimiter
    in_flight: InFlight = field(default_factory=InFlight)
    draining: bool = False

    def probe_storage(self) -> None:
        for dataset in self.signals.values():
            folder = batches.incoming_folder(segments.spool_folder(self.home, dataset.name))
            self.health.probe(self.store, folder, self.limits.keep_free_bytes)

    def close(self) -> None:
        """Finish every batch that was received, then close the store."""
        self.receiver.close()
        self.store.close()


def create_context(home_open: OpenHome, limits: ServerLimits, *, refresh_seconds: float = 1.0) -> ServerContext:
    home, store = home_open.home, home_open.store
    metrics, health = ServerMetrics(), StorageHealth()
    signals = {signal: datasets.get(name) for signal, name in SIGNALS.items()}
    folders = {dataset.name: batches.create_incoming_folder(home, dataset.name) for dataset in signals.values()}
    server_id, signer = auth.server_id(home), TokenSigner(auth.signing_key(home))
    commit = GroupCommit(store, metrics, health, limits.keep_free_bytes)
    metrics.watch("hyp_server_waiting_batches", "Durable batches waiting for their commit", lambda: commit.waiting)
    body_memory = ByteBudget(limits.held_bytes)
    metrics.watch("hyp_server_held_bytes", "Bytes of request bodies in memory", lambda: body_memory.reserved)
    return ServerContext(
        home=home,
        store=store,
        server_id=server_id,
        limits=limits,
        auth=Authenticator(store, signer, refresh_seconds=refresh_seconds),
        receiver=BatchReceiver(store, folders, commit, limits, health),
        metrics=metrics,
        health=health,
        signals=signals,
        body_memory=body_memory,
        concurrency=ConcurrencyLimit(limits.requests_at_once),
        request_rate=RateLimiter(limits.requests_per_second, 2 * limits.requests_per_second),
        enrolment_rate=RateLimiter(limits.enrolments_per_minute / 60, limits.enrolments_per_minute),
    )
