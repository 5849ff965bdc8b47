"""The server's log, storage health and metrics.

A storage failure is remembered for `/readyz` until storing works again. No label of a metric names a gateway, a source
or content.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hypaware.errors import HypError
from hypaware.state.store import StateStore

log = logging.getLogger("hypaware.server")
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30)


class StorageHealth:
    """Set and cleared by the threads that store batches, read by any thread."""

    def __init__(self) -> None:
        self.problem: str | None = None

    def failed(self, error: BaseException) -> None:
        if self.problem is None:
            log.error("cannot store batches: %s: %s", type(error).__name__, error)
        self.problem = type(error).__name__

    def recovered(self) -> None:
        if self.problem is not None:
            log.info("batches can be stored again")
        self.problem = None

    def probe(self, store: StateStore, try_storage: Callable[[], None]) -> None:
        """Test whether storing works. A server that is not ready gets no batches that would test it."""
        try:
            try_storage()
            with store.transaction():
                pass
        except (OSError, HypError) as error:
            self.failed(error)
        else:
            self.recovered()


def require_free_space(folder: Path, min_free: int) -> None:
    """Raise OSError if the disk has less than `min_free` bytes left."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < min_free:
        raise OSError(f"the disk of {folder} has less than {min_free} bytes free")


class ServerMetrics:
    def __init__(self) -> None:
        # Not the global registry: a test process may run several servers.
        self._registry = CollectorRegistry(auto_describe=True)
        counter = partial(Counter, registry=self._registry)
        self.requests = counter("hyp_server_requests", "Requests answered", ["route", "status"])
        self.rows = counter("hyp_server_rows", "Rows stored")
        self.body_bytes = counter("hyp_server_body_bytes", "Bytes of batches received")
        self.batches = counter("hyp_server_batches", "Batches by outcome", ["outcome"])
        self.commits = Histogram(
            "hyp_server_commit_seconds",
            "Time from gathering a group of batches to answering them",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.flushes = counter("hyp_server_flushes", "Flushes by status", ["status"])
        self.maintenances = counter("hyp_server_maintenances", "Maintenance runs by status", ["status"])

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read when the metrics are requested."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
