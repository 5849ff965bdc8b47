"""What a job holds while it runs, in an engine and inline alike: its way to Spark, to its caller and to its
end."""

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
    """The `JobContext` of one run. A caller that is gone counts as one that cancelled."""

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
            _refuse_other_lakes(self.config.lake)
            self._spark = self._driver.spark(self)
            try:
                # Of this thread, which py4j pins to one of the JVM's.
                self._spark.sparkContext.setJobGroup(self._run_id, self._job)
                self._driver.adopt_thread()
                self.check_cancelled()
                self._driver.settle(self)
            except BaseException:
                self._spark = None
                raise
        return self._spark

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        shown = {name: fact if isinstance(fact, _PLAIN) else str(fact) for name, fact in facts.items()}
        self._send({"type": "progress", "message": message, "done": done, "total": total, **shown})

    def emit(self, chunk: bytes) -> None:
        self.check_cancelled()
        try:
            self._connection.send_bytes(chunk)
        except OSError:
            self._caller_is_gone()

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
            self._caller_is_gone()

    def _caller_is_gone(self) -> None:
        self._cancelled.set()
        self.check_cancelled()


_PLAIN = (str, int, float, bool, type(None))


def _refuse_other_lakes(lake: LakeConfig) -> None:
    """Rather than to pass over it: no row may lie elsewhere than its owner was told."""
    for name, chosen, built in (("catalog", lake.catalog, "embedded"), ("warehouse", lake.warehouse, "")):
        if chosen != built:
            raise NotReady(
                f"lake.{name} is set, but this version keeps its tables below the home, in the embedded catalog; "
                "rows wait in the spool meanwhile",
                kind="lake_elsewhere",
                repair=f"hyp config set lake.{name} '{built}'",
            )
