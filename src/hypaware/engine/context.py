"""The context of a running job, in an engine or inline: its access to Spark, to its caller and to cancellation."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hypaware.engine.driver import Driver
from hypaware.engine.protocol import Connection, Message
from hypaware.errors import Cancelled, NotReady
from hypaware.home import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import Config, LakeConfig


class Context:
    """The `JobContext` of one run. If the caller disconnects, the job is cancelled."""

    def __init__(
        self,
        run_id: str,
        job: str,
        home: Home,
        config: Config,
        driver: Driver,
        connection: Connection,
        cancelled: threading.Event,
    ) -> None:
        self.home = home
        self.config = config
        self._run_id = run_id
        self._job = job
        self._driver = driver
        self._connection = connection
        self._cancelled = cancelled
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            _require_embedded_lake(self.config.lake)
            self._spark = self._driver.spark(self)
            try:
                # The job group applies to this thread, which py4j pins to a thread of the JVM.
                self._spark.sparkContext.setJobGroup(self._run_id, self._job)
                self._driver.activate_session()
                self.check_cancelled()
                self._driver.recover(self)
            except BaseException:
                self._spark = None
                raise
        return self._spark

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        fields = {name: fact if isinstance(fact, _PLAIN) else str(fact) for name, fact in facts.items()}
        self._send({"type": "progress", "message": message, "done": done, "total": total, **fields})

    def emit(self, chunk: bytes) -> None:
        self.check_cancelled()
        try:
            self._connection.send_bytes(chunk)
        except OSError:
            self._cancel_without_caller()

    def note(self, message: str) -> None:
        self._send({"type": "note", "message": message})

    def check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"{self._job} was cancelled")

    def _send(self, message: Message) -> None:
        self.check_cancelled()
        try:
            self._connection.send(message)
        except OSError:
            self._cancel_without_caller()

    def _cancel_without_caller(self) -> None:
        self._cancelled.set()
        self.check_cancelled()


_PLAIN = (str, int, float, bool, type(None))


def _require_embedded_lake(lake: LakeConfig) -> None:
    """Reject unsupported settings instead of ignoring them, so that rows are never stored in an unexpected place."""
    for name, value, supported in (("catalog", lake.catalog, "embedded"), ("warehouse", lake.warehouse, "")):
        if value != supported:
            raise NotReady(
                f"lake.{name} is set, but this version supports only the embedded catalog below the home; "
                "rows stay in the spool until this is fixed",
                kind="lake_elsewhere",
                repair=f"hyp config set lake.{name} '{supported}'",
            )
