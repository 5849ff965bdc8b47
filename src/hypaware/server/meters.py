"""The server's metrics for `/metrics` (Prometheus text). No label names a gateway, a source or content."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30)


class Meters:
    def __init__(self) -> None:
        # Not the global registry: a test process may run several servers.
        self._registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "hyp_server_requests", "Requests answered", ["route", "status"], registry=self._registry
        )
        self._rows = Counter("hyp_server_rows", "Rows stored", registry=self._registry)
        self._bytes = Counter("hyp_server_body_bytes", "Bytes of batches received", registry=self._registry)
        self._batches = Counter("hyp_server_batches", "Batches by outcome", ["outcome"], registry=self._registry)
        self._commits = Histogram(
            "hyp_server_commit_seconds",
            "Time from gathering a group of batches to answering them",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._flushes = Counter("hyp_server_flushes", "Flushes by status", ["status"], registry=self._registry)

        self._maintenances = Counter(
            "hyp_server_maintenances", "Maintenance runs by status", ["status"], registry=self._registry
        )

    def answered(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def received(self, size: int) -> None:
        self._bytes.inc(size)

    def batch(self, outcome: str, rows: int = 0) -> None:
        self._batches.labels(outcome).inc()
        self._rows.inc(rows)

    def committed(self, seconds: float) -> None:
        self._commits.observe(seconds)

    def flushed(self, status: str) -> None:
        self._flushes.labels(status).inc()

    def maintained(self, status: str) -> None:
        self._maintenances.labels(status).inc()

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read when the metrics are requested."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
