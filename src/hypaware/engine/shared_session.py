"""What the JVM needs for a shared lake: the settings of its catalog, and the lease that lets it commit.

The lease is held through a session of the database that belongs to the JVM, so it ends with the JVM, even if that is
killed. Python may be gone by then, or not yet. A thread renews the lease. If it is lost, or cannot be renewed for as
long as it lasts, the JVM is killed: its connections have an epoch that the database rejects, so it can do no harm, and
no good either.

Keys of the bucket are never in a setting: the S3 client of the JVM finds them in the environment, in a file or on the
machine. The password of the database is in the JVM's memory, not in its arguments.

@ref engine#lease
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from hypaware.config.shared_lake import LAKE_NAME, SharedLake
from hypaware.errors import HypError, LakeError, NotReady, Retryable
from hypaware.home.s3_keys import find_region
from hypaware.iceberg import catalog
from hypaware.iceberg.metadata import CATALOG
from hypaware.state import lake_lease
from hypaware.state.lake_lease import LEASE_SECONDS

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

_POLL_SECONDS = 0.2
_KEYS_FILE = "AWS_SHARED_CREDENTIALS_FILE"
# How often a waiting process announces itself, and how often the owner looks for one.
_WANTED_SECONDS = 2.0
_DATABASE_ERROR = re.compile(r"org\.postgresql\.util\.PSQLException: (.+)")
_BUCKET_ERROR = re.compile(r"software\.amazon\.awssdk\.[\w.]+Exception: (.+)")
_FILE_PROVIDER = "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"


def shared_settings(shared: SharedLake) -> dict[str, str]:
    """Return the properties of the catalog, without its address, which must carry the epoch of the lease."""
    s3 = shared.s3
    settings = {
        "uri": shared.jdbc_uri,
        "warehouse": shared.warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": find_region(s3.region),
        "s3.path-style-access": str(s3.path_style).lower(),
    }
    if s3.endpoint:
        settings["s3.endpoint"] = s3.endpoint
    if shared.keys_file:
        # The SDK reads the name of the file from the environment of the JVM, which inherits this one.
        os.environ[_KEYS_FILE] = shared.keys_file
        settings["client.credentials-provider"] = _FILE_PROVIDER
    return settings | {f"jdbc.{name}": value for name, value in _login(shared).items()}


def shared_executor_settings(shared: SharedLake) -> dict[str, str]:
    """Return the settings with which executors find the keys: those of their machine, or in a file that it has too."""
    return {f"spark.executorEnv.{_KEYS_FILE}": shared.keys_file} if shared.keys_file else {}


def _login(shared: SharedLake) -> dict[str, str]:
    given = {"user": shared.user, "password": shared.password}
    return {name: value for name, value in given.items() if value}


class JdbcSession:
    """Runs statements one by one; each is its own transaction, unless BEGIN was run."""

    def __init__(self, view: JVMView, uri: str, properties: Mapping[str, str]) -> None:
        """Connect. The properties are those of the driver, such as `user` and `password`."""
        given = view.java.util.Properties()
        for name, value in properties.items():
            given.setProperty(name, value)
        # The driver itself: a driver manager finds only drivers of the class loader that calls it.
        self._connection = view.org.postgresql.Driver().connect(uri, given)

    def run(self, sql: str) -> list[list[Any]]:
        """Run a statement and return its rows."""
        statement = self._connection.createStatement()
        try:
            if not statement.execute(sql):
                return []
            found = statement.getResultSet()
            columns = range(1, found.getMetaData().getColumnCount() + 1)
            rows = []
            while found.next():
                rows.append([found.getObject(column) for column in columns])
            return rows
        finally:
            statement.close()

    def close(self) -> None:
        self._connection.close()


class LeaseHolder:
    """The lease of one JVM. `on_lost` is called once if the lease is lost."""

    def __init__(
        self, view: JVMView, shared: SharedLake, on_lost: Callable[[], None], seconds: float = LEASE_SECONDS
    ) -> None:
        self._shared = shared
        self._on_lost = on_lost
        self._seconds = seconds
        self._ended = threading.Event()
        try:
            self._session = JdbcSession(view, shared.jdbc_uri, _login(shared) | {"tcpKeepAlive": "true"})
        except Py4JError as error:
            raise _unavailable(shared, error) from error
        self._epoch: int | None = None
        self.is_wanted = False
        """Whether another machine waits for the lease."""

    def acquire(self, wait: Callable[[float, str], None]) -> str:
        """Wait for the lease and return the address of the catalog under its epoch.

        `wait` is called repeatedly with the seconds waited so far, and a text that says who holds the lease.
        """
        owner, run = lake_lease.own_name(), self._session.run
        began, next_note, holder = time.monotonic(), 0.0, ""
        try:
            lake_lease.install_fence(run)
            while (epoch := self._try_acquire(owner)) is None:
                waited = time.monotonic() - began
                if waited >= next_note:
                    next_note = waited + _WANTED_SECONDS
                    lake_lease.note_waiter(run, LAKE_NAME, owner)
                    holder = _name_holder(run) or holder
                wait(waited, holder)
                time.sleep(_POLL_SECONDS)
            lake_lease.forget_waiters(run, LAKE_NAME)
        except Py4JError as error:
            raise _unavailable(self._shared, error) from error
        self._epoch = epoch
        catalog.hold_lease(epoch)
        threading.Thread(target=self._renew, args=(epoch,), name="lease", daemon=True).start()
        return lake_lease.fenced_jdbc_uri(self._shared.jdbc_uri, epoch)

    def _try_acquire(self, owner: str) -> int | None:
        return lake_lease.try_acquire(self._session.run, LAKE_NAME, owner, self._seconds)

    def guard_catalog(self) -> None:
        lake_lease.guard_catalog(self._session.run, LAKE_NAME, CATALOG)

    def _renew(self, epoch: int) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(min(_WANTED_SECONDS, self._seconds / 3)):
            try:
                self.is_wanted = lake_lease.is_wanted(self._session.run, LAKE_NAME)
                if time.monotonic() - renewed < self._seconds / 3:
                    continue
                if not lake_lease.renew(self._session.run, LAKE_NAME, epoch):
                    break
                renewed = time.monotonic()
            except Exception:
                # The session is gone, or the database does not answer. Another machine may take over from now on.
                if time.monotonic() - renewed > self._seconds:
                    break
        if not self._ended.is_set():
            self._on_lost()

    def close(self) -> None:
        """Stop renewing the lease. The session ends with the JVM."""
        self._ended.set()
        if self._epoch is not None and catalog.held_epoch() == self._epoch:
            catalog.hold_lease(None)
        with suppress(Exception):
            self._session.close()


def _name_holder(run: lake_lease.Run) -> str:
    holder = lake_lease.find_holder(run, LAKE_NAME, LEASE_SECONDS)
    return str(holder) if holder else ""


def _unavailable(shared: SharedLake, error: Py4JError) -> NotReady | Retryable:
    exception = getattr(error, "java_exception", None)
    reason = (str(exception.getMessage()) if exception is not None else str(error)).splitlines()[0]
    state = exception.getSQLState() if exception is not None and hasattr(exception, "getSQLState") else None
    if state is not None and str(state).startswith("28"):
        return NotReady(
            f"the database {shared.address} (lake.catalog) does not accept the user or the password: {reason}",
            kind="bad_credentials",
            repair="hyp config show lake",
        )
    return Retryable(
        f"the database {shared.address} (lake.catalog) is not available: {reason}", kind="catalog_unavailable"
    )


def explain_storage_error(shared: SharedLake, error: BaseException) -> HypError | None:
    """Return the error for a job that failed because the database or the bucket did, or None if neither did.

    The JVM reports it in an exception of Iceberg or Spark, whose text has that of its cause.
    """
    text = str(error)
    if "holds the lease" in text:
        return LakeError("another machine has taken over the lake; run the command again", kind="lease_lost")
    for place, cause, kind in (
        (f"the database {shared.address} (lake.catalog)", _DATABASE_ERROR, "catalog_unavailable"),
        (f"the bucket of {shared.warehouse} (lake.warehouse)", _BUCKET_ERROR, "warehouse_unavailable"),
    ):
        if found := cause.search(text):
            return Retryable(f"{place} failed: {found[1].strip()[:300]}; no row is lost", kind=kind)
    return None
